"""What a transformer block does between its matrix products and its attention, each in one pass over memory.

Nothing is allocated and nothing read back: the caller gives every output, and numbers that change from step to step are
read from tensors on the device, so that a whole step can be captured in a CUDA graph.
"""

from .moves import evict
from .rotary import Append, HeadNorm, RotaryTables, qk_norm_rope
from .sums import add, add_norm, norm

__all__ = ["Append", "HeadNorm", "RotaryTables", "add", "add_norm", "evict", "norm", "qk_norm_rope"]
