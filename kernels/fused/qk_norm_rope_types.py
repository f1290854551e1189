"""Arguments of `qk_norm_rope`: head norms, rotary tables, and the slots of appended keys and values."""

from dataclasses import dataclass

import torch
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = 448.0


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """LayerNorm over the D channels of a head, one for queries and one for keys; weights and biases float32 [D]."""

    query_weight: Tensor
    query_bias: Tensor
    key_weight: Tensor
    key_bias: Tensor
    eps: float = 1e-5


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Rotation angles of each pair of a head's channels.

    Attributes:
        cos, sin: float32 [F, P, D / 2], or [1, P, D / 2] shared by all frames.
        pairs: whether pair i is channels 2i and 2i + 1. Otherwise D splits into four quarters: for i < D / 4 pair i is
            channel i of the first and of the second quarter, the other pairs combine the third and the fourth alike.
    """

    cos: Tensor
    sin: Tensor
    pairs: bool


@dataclass(frozen=True, slots=True)
class Append:
    """The cache and slots that a layer's keys and values are written to.

    Attributes:
        kv_cache: keys and values [2, T, H, D], in the dtype of the projection or in float8_e4m3fn; mutated.
        slots: int64 [F] on the device, each frame's first slot; token p of frame f is written to slots[f] + p. Tokens
            outside [0, T) are skipped, so -P skips a whole frame.
    """

    kv_cache: Tensor
    slots: Tensor
