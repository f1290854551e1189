"""Arguments of `qk_norm_rope`: head norms, rotary tables, and the place of appended keys and values."""

from dataclasses import dataclass

import torch
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = 448.0


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """LayerNorm over the D numbers of a head, one for queries and one for keys; weights and biases float32 [D]."""

    query_weight: Tensor
    query_bias: Tensor
    key_weight: Tensor
    key_bias: Tensor
    eps: float = 1e-5


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """By what angle each pair of numbers of a head is turned.

    Attributes:
        cos, sin: float32 [F, P, D / 2], or [1, P, D / 2] shared by all frames.
        pairs: pair i is numbers 2i and 2i + 1. If not, D splits into two halves and each half into two quarters; pair i
            is number i of the first quarter and of the second for i < D / 4, then of the third and of the fourth.
    """

    cos: Tensor
    sin: Tensor
    pairs: bool


@dataclass(frozen=True, slots=True)
class Append:
    """Where a layer's keys and values go.

    Attributes:
        memory: keys and values [2, T, H, D], in the dtype of the projection or in float8_e4m3fn; mutated.
        places: int64 [F] on the device; token p of frame f goes to place places[f] + p. What falls outside [0, T) is
            not written, so a negative place of at least P leaves a frame out.
    """

    memory: Tensor
    places: Tensor
