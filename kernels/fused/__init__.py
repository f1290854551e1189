"""What surrounds a transformer block's matrix products and attention, each in one pass over memory.

Nothing is allocated and nothing read back: the caller gives every output, and numbers that change from step to step are
read from tensors on the device, so that a whole step can be captured in a CUDA graph.
"""

from .add_norm import add, add_norm, add_norm_reference, norm
from .kv_copy import evict
from .preprocess import preprocess, preprocess_reference
from .preprocess_tables import ImageTables, image_tables
from .qk_norm_rope import qk_norm_rope, qk_norm_rope_reference
from .qk_norm_rope_types import Append, HeadNorm, RotaryTables

__all__ = [
    "Append",
    "HeadNorm",
    "ImageTables",
    "RotaryTables",
    "add",
    "add_norm",
    "add_norm_reference",
    "evict",
    "image_tables",
    "norm",
    "preprocess",
    "preprocess_reference",
    "qk_norm_rope",
    "qk_norm_rope_reference",
]
