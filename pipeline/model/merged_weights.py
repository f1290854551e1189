"""Merges the weights of several layers into one tensor that a single kernel reads; the parameters become views of it.

Parameter names, shapes, loading and saving do not change, and no weight is stored twice once the old memory is freed.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

ROWS = 64
"""The number of merged rows is padded to a multiple of this. Each row of a product then has a multiple of 128 bytes in
16-bit formats, so it starts at a cache line."""

Layer = nn.Linear | nn.Conv1d


class MergedWeights:
    """The merged weights of some layers.

    The weights are merged at the first use, and again whenever a weight has been replaced: loaded by assignment, moved
    to another device or converted to another number format. In-place writes go to the merged tensor directly.
    """

    def __init__(self) -> None:
        self._merged: Tensor | None = None

    def rows(self, layers: Sequence[nn.Linear]) -> Tensor:
        """Merge weights [n, C] of linear layers into [sum of n, C], zero-padded to a multiple of `ROWS` rows."""
        return self._get(layers, lambda n, weight: weight.new_zeros(-(-n // ROWS) * ROWS, weight.shape[1]))

    def taps(self, layers: Sequence[nn.Conv1d]) -> Tensor:
        """Merge depthwise convolution weights [n, 1, W] into [sum of n, 1, W], with each tap's channels contiguous."""
        return self._get(layers, lambda n, weight: weight.new_zeros(weight.shape[2], n).t()[:, None])

    def _get(self, layers: Sequence[Layer], zeros: Callable[[int, Tensor], Tensor]) -> Tensor:
        merged = self._merged
        if merged is None or not all(_same(layer.weight, part) for layer, part in _parts(layers, merged)):
            # Inference tensors could not be written in place outside inference mode.
            with torch.inference_mode(False), torch.no_grad():
                merged = self._merged = zeros(sum(len(layer.weight) for layer in layers), layers[0].weight)
                for layer, part in _parts(layers, merged):
                    part.copy_(layer.weight)
                    layer.weight = nn.Parameter(part, requires_grad=layer.weight.requires_grad)
        return merged


def _parts(layers: Sequence[Layer], merged: Tensor) -> list[tuple[Layer, Tensor]]:
    ends = [0]
    for layer in layers:
        ends.append(ends[-1] + len(layer.weight))
    return [(layer, merged[first:end]) for layer, (first, end) in zip(layers, pairwise(ends), strict=True)]


def _same(weight: Tensor, part: Tensor) -> bool:
    # The merged tensor keeps its memory alive, so no other tensor can have this address.
    return weight.data_ptr() == part.data_ptr() and weight.shape == part.shape and weight.dtype == part.dtype
