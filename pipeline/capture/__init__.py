"""From a source to frames: the camera's state machine and its capture process."""
