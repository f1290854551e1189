"""Attention of frames to ranges of places of one big memory, forward only: `attend_ranges`."""

from .ranges import attend_ranges

__all__ = ["attend_ranges"]
