"""The engine turns frames into outputs. It manages streams and batches, runs the model, and recovers from faults."""
