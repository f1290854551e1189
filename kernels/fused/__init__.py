"""Fused kernels for the steps around a transformer block's matrix products and attention. Each passes over memory once.

The kernels allocate no memory and read nothing back to the host: the caller passes every output, and numbers that
change from step to step are read from tensors on the device. So a whole step can be captured in a CUDA graph.
"""

from .add_norm import add, add_norm, add_norm_reference, norm
from .kv_copy import copy_slots
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
    "copy_slots",
    "image_tables",
    "norm",
    "preprocess",
    "preprocess_reference",
    "qk_norm_rope",
    "qk_norm_rope_reference",
]
