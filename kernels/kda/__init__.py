"""Kimi Delta Attention (arXiv 2510.26692): `chunk_kda` for many tokens, `fused_recurrent_kda` for few.

Forward pass only.
"""

from .chunk import chunk_kda
from .recurrent import fused_recurrent_kda

__all__ = ["chunk_kda", "fused_recurrent_kda"]
