"""The engine: frames in, outputs out. Streams, batches, execution of the model, recovery from faults."""
