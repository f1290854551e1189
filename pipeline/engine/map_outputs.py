"""The output heads that publish maps: a depth, or a point, for the pixels of the model's image."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import OutputConfig
from ..frames import Output, OutputKind
from ..model.dense_head import DenseHead, depth_of, points_of
from ..model.horizon_heads import metric_scale
from ..model.scale_head import MetricScaleHead
from .outputs import HeadInputs
from .token_shape import TokenShape

FRAMES_AT_ONCE = 2
"""Number of frames whose maps are computed together. Measured at 518 x 378 pixels on an H200 with torch 2.11, per frame
and in all: 1 frame at once 2.60 ms and 0.42 GB, 2 frames 1.90 ms and 0.65 GB, 4 frames 1.72 ms and 1.29 GB, 16 frames
1.54 ms and 5.14 GB."""


@dataclass(frozen=True, slots=True, eq=False)
class MapOutput:
    """Publishes the maps of a dense head, and their confidences; implements `OutputHead`.

    Attributes:
        kind: depth or points.
        layers: the layer pairs that are read: those of the head, and with `scale` also the deepest one.
        head: predicts the maps.
        patch_size: width and height of a patch, in pixels.
        config: the form of the maps.
        scale: estimates how many metres the head's unit has; None if that is unknown.
    """

    kind: OutputKind
    layers: tuple[int, ...]
    head: DenseHead
    patch_size: int
    config: OutputConfig
    scale: MetricScaleHead | None = None

    def outputs(self, shape: TokenShape) -> tuple[Output, ...]:
        """The map, then the confidence: [h, w] or [h, w, 3], and [h, w], of the published pixels."""
        height, width = (-(-side * self.patch_size // self.config.map_stride) for side in shape.grid)
        last = () if self.kind is OutputKind.DEPTH else (3,)
        return (
            Output(self.kind.value, (height, width, *last), "float16", self.kind),
            Output(f"{self.kind}_confidence", (height, width), "float16", self.kind),
        )

    def gather(self, inputs: HeadInputs, targets: Sequence[Tensor]) -> None:
        """See `OutputHead.gather`."""
        rows, columns = inputs.shape.grid
        size = columns * self.patch_size, rows * self.patch_size
        scales = None if self.scale is None else metric_scale(self.scale, inputs.layers[-1])
        for start in range(0, len(targets[0]), FRAMES_AT_ONCE):
            chosen = slice(start, start + FRAMES_AT_ONCE)
            layers = [
                torch.cat([part[chosen, inputs.shape.special :] for part in layer.parts], dim=-1)
                for layer in inputs.layers[: self.head.levels]
            ]
            values, confidence = self.head(layers, inputs.shape.grid, size)
            chosen_scales = None if scales is None else scales[chosen]
            self._write(values, confidence, chosen_scales, [target[chosen] for target in targets])

    def _write(self, values: Tensor, confidence: Tensor, scales: Tensor | None, targets: Sequence[Tensor]) -> None:
        stride = self.config.map_stride
        values, confidence = values[:, ::stride, ::stride], confidence[:, ::stride, ::stride]
        numbers = depth_of(values) if self.kind is OutputKind.DEPTH else points_of(values)
        if scales is not None:
            numbers = numbers * scales[:, None, None]
        if self.config.min_confidence:
            unsure = confidence < self.config.min_confidence
            numbers = numbers.masked_fill(unsure.view(*unsure.shape, *(1,) * (numbers.dim() - unsure.dim())), torch.nan)
        targets[0].copy_(numbers)
        targets[1].copy_(confidence)
