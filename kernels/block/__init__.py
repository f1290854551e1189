"""What surrounds a transformer block's matrix products and attention, each in one pass over memory.

Nothing is allocated and nothing read back: the caller gives every output, and numbers that change from step to step are
read from tensors on the device, so that a whole step can be captured in a CUDA graph.
"""

from .moves import evict
from .pictures import PictureTables, picture_tables, preprocess, preprocess_reference
from .rotary import Append, HeadNorm, RotaryTables, qk_norm_rope, qk_norm_rope_reference
from .sums import add, add_norm, add_norm_reference, norm

__all__ = [
    "Append",
    "HeadNorm",
    "PictureTables",
    "RotaryTables",
    "add",
    "add_norm",
    "add_norm_reference",
    "evict",
    "norm",
    "picture_tables",
    "preprocess",
    "preprocess_reference",
    "qk_norm_rope",
    "qk_norm_rope_reference",
]
