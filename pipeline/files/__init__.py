"""Files that are complete or absent: atomic writes, locks, tensors, stream states."""
