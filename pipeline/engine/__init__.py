"""From frames to outputs: streams, batches, the model's execution, and recovery from faults."""
