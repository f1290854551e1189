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
        layers = [
            torch.cat([part[:, inputs.shape.special :] for part in layer.parts], dim=-1)
            for layer in inputs.layers[: self.head.levels]
        ]
        size = columns * self.patch_size, rows * self.patch_size
        values, confidence = self.head(layers, inputs.shape.grid, size)
        stride = self.config.map_stride
        values, confidence = values[:, ::stride, ::stride], confidence[:, ::stride, ::stride]
        numbers = depth_of(values) if self.kind is OutputKind.DEPTH else points_of(values)
        if self.scale is not None:
            numbers = numbers * metric_scale(self.scale, inputs.layers[-1])[:, None, None]
        if self.config.min_confidence:
            unsure = confidence < self.config.min_confidence
            numbers = numbers.masked_fill(unsure.view(*unsure.shape, *(1,) * (numbers.dim() - unsure.dim())), torch.nan)
        targets[0].copy_(numbers)
        targets[1].copy_(confidence)
