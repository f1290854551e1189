"""Arguments of `qk_norm_rope`: head norms, rotary tables, and the slots of appended keys and values."""

from dataclasses import dataclass

import torch
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = 448.0


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """LayerNorm over the D channels of a head, for queries and for keys. Weights and biases are float32 [D]."""

    query_weight: Tensor
    query_bias: Tensor
    key_weight: Tensor
    key_bias: Tensor
    eps: float = 1e-5


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """The rotation angles of the pairs into which a head's channels are grouped.

    Attributes:
        cos, sin: float32 [F, P, D / 2], or [1, P, D / 2] for all frames.
        pairs: which two channels are rotated together. True: channels 2i and 2i + 1. False: within each half of the D
            channels, channel i and channel i + D / 4.
    """

    cos: Tensor
    sin: Tensor
    pairs: bool


@dataclass(frozen=True, slots=True)
class Append:
    """The cache and the slots where a layer's keys and values are written.

    Attributes:
        kv_cache: keys and values [2, T, H, D], in the dtype of the projection or in float8_e4m3fn; mutated.
        slots: int64 [F] on the device, the first slot of each frame; token p of frame f is written to slot
            slots[f] + p. Tokens whose slot is outside [0, T) are skipped, so -P skips a whole frame.
    """

    kv_cache: Tensor
    slots: Tensor
