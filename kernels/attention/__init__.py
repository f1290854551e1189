"""Attention of frames to ranges of slots in one shared KV cache, forward only: `attend_ranges`."""

from .ranges import attend_ranges

__all__ = ["attend_ranges"]
