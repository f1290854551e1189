"""Capture: the camera state machine, and the process that reads a source into shared memory."""
