"""Kimi Delta Attention (arXiv 2510.26692), forward only: `chunk_kda` for many tokens, `fused_recurrent_kda` for few."""

from .chunk import chunk_kda
from .recurrent import fused_recurrent_kda

__all__ = ["chunk_kda", "fused_recurrent_kda"]
