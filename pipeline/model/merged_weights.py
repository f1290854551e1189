"""Weights that one kernel reads together, side by side in one tensor: the layers' parameters become views of it.

Names, shapes, loading and saving stay as they are, and nothing is held twice once the former memory is let go.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

ROWS = 64
"""Rows of a whole are a multiple of it: 128 bytes of 16 bits, so that each row of a product begins at a cache line."""

Layer = nn.Linear | nn.Conv1d


class MergedWeights:
    """The weights of some layers as one tensor.

    It is made at the first use, and again whenever a weight has been replaced: loaded by assignment, moved to another
    device or into another number format. Weights that are written in place lie in it and need nothing.
    """

    def __init__(self) -> None:
        self._whole: Tensor | None = None

    def rows(self, layers: Sequence[nn.Linear]) -> Tensor:
        """Weights [n, C] of linear layers as [sum of n, C], and zeros up to a multiple of `ROWS`."""
        return self._kept(layers, lambda n, weight: weight.new_zeros(-(-n // ROWS) * ROWS, weight.shape[1]))

    def taps(self, layers: Sequence[nn.Conv1d]) -> Tensor:
        """Weights [n, 1, W] of depthwise convolutions as [sum of n, 1, W], the channels of a tap dense in memory."""
        return self._kept(layers, lambda n, weight: weight.new_zeros(weight.shape[2], n).t()[:, None])

    def _kept(self, layers: Sequence[Layer], zeros: Callable[[int, Tensor], Tensor]) -> Tensor:
        whole = self._whole
        if whole is None or not all(_same(layer.weight, part) for layer, part in _parts(layers, whole)):
            # Not tensors of an inference, which could not be written in place after it.
            with torch.inference_mode(False), torch.no_grad():
                whole = self._whole = zeros(sum(len(layer.weight) for layer in layers), layers[0].weight)
                for layer, part in _parts(layers, whole):
                    part.copy_(layer.weight)
                    layer.weight = nn.Parameter(part, requires_grad=layer.weight.requires_grad)
        return whole


def _parts(layers: Sequence[Layer], whole: Tensor) -> list[tuple[Layer, Tensor]]:
    ends = [0]
    for layer in layers:
        ends.append(ends[-1] + len(layer.weight))
    return [(layer, whole[first:end]) for layer, (first, end) in zip(layers, pairwise(ends), strict=True)]


def _same(weight: Tensor, part: Tensor) -> bool:
    # The whole keeps its memory, so nothing else can have come to lie there.
    return weight.data_ptr() == part.data_ptr() and weight.shape == part.shape and weight.dtype == part.dtype
