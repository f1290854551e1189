"""`attend_ranges`: attention of frames to ranges of slots in one shared KV cache. Forward pass only."""

from .ranges import attend_ranges

__all__ = ["attend_ranges"]
