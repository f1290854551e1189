"""Tables that map an image of one size to the model's input: filter taps, crop, padding, levels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

SUPPORT = 2.0
"""Source pixels on each side of its centre that the cubic filter reaches, where pictures are enlarged."""


class ResizeGeometry(Protocol):
    """How pictures of one size become the model's; all sizes are width and height."""

    @property
    def source_size(self) -> tuple[int, int]:
        """Of the source."""

    @property
    def resized(self) -> tuple[int, int]:
        """After resampling."""

    @property
    def crop_top(self) -> int:
        """Rows cut off at the top of the resized picture."""

    @property
    def pad_left(self) -> int:
        """White columns added at the left."""

    @property
    def pad_top(self) -> int:
        """White rows added at the top."""

    @property
    def model_size(self) -> tuple[int, int]:
        """Of the result."""


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """A filter: target pixel i is the sum over k of weights[k, i] times source pixel starts[i] + k.

    Attributes:
        starts: int32 [n]; negative where the target is white.
        weights: float32 [K, n].
    """

    starts: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ImageTables:
    """What `preprocess` needs to know of one size of pictures.

    Attributes:
        source_size, model_size: width and height.
        first_row, stop_row: rows of the source that are read.
        columns: the filter over the width, n of them; None where the width stays.
        rows: the filter over the height, one entry a row of the result, counted from `first_row`.
        pad_left: white columns at the left.
        levels: float32 [3, 256], what each level of red, green and blue becomes.
    """

    source_size: tuple[int, int]
    model_size: tuple[int, int]
    first_row: int
    stop_row: int
    columns: Taps | None
    rows: Taps
    pad_left: int
    levels: Tensor

    @property
    def between_shape(self) -> tuple[int, int, int]:
        """Of the picture between the passes: rows, columns, channels."""
        width = self.source_size[0] if self.columns is None else self.columns.starts.shape[0]
        return (self.stop_row - self.first_row, width, 3)


def image_tables(
    geometry: ResizeGeometry, mean: Sequence[float], std: Sequence[float], device: torch.device
) -> ImageTables:
    """Make the tables of one size, once; they are kept by the caller.

    Args:
        geometry: sizes, crop and padding.
        mean, std: of red, green and blue, in [0, 1]; subtracted, then divided by.
        device: where the tables will lie.
    """
    width, height = geometry.source_size
    rows, first, stop = _model_rows(geometry)
    columns = None if geometry.resized[0] == width else _on(*_taps(width, geometry.resized[0]), device)
    scale = torch.arange(256, dtype=torch.float32)[None] / 255.0
    levels = (scale - torch.tensor(mean)[:, None]) / torch.tensor(std)[:, None]
    return ImageTables(
        (width, height),
        geometry.model_size,
        first,
        stop,
        columns,
        _on(*rows, device),
        geometry.pad_left,
        levels.to(device),
    )


def _taps(source: int, target: int) -> tuple[Tensor, Tensor]:
    # Starts int64 [target] and weights [K, target]; every tap lies inside of the source. In float32, as PyTorch forms
    # them: exact weights leave one level in 100 of an enlarged picture on the other side of a half, these one in 4000.
    scale = torch.tensor(source, dtype=torch.float32) / target
    stretch = scale.clamp(min=1.0)
    centres = scale * (torch.arange(target, dtype=torch.float32) + 0.5)
    first = (centres - SUPPORT * stretch + 0.5).long().clamp(min=0)
    stop = (centres + SUPPORT * stretch + 0.5).long().clamp(max=source)
    K = int((stop - first).max())
    starts = first.clamp(max=source - K)
    places = starts + torch.arange(K)[:, None]  # [K, target]
    weights = _cubic((places - centres + 0.5) * (1.0 / stretch)).where((places >= first) & (places < stop), 0.0)
    return starts, weights / weights.sum(0)


def _cubic(x: Tensor) -> Tensor:
    # Keys' cubic convolution with a = -1/2, as Pillow's; "Cubic convolution interpolation", 1981.
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return near.where(x < 1, far.where(x < 2, 0.0))


def _model_rows(geometry: ResizeGeometry) -> tuple[tuple[Tensor, Tensor], int, int]:
    # The filter of each row of the result, and the first and last + 1 of the source rows that it reads.
    source, resized, rows = geometry.source_size[1], geometry.resized[1], geometry.model_size[1]
    if source == resized:
        starts, weights = torch.arange(source), torch.ones(1, source)
    else:
        starts, weights = _taps(source, resized)
    row = torch.arange(rows) + geometry.crop_top - geometry.pad_top
    inside = (row >= 0) & (row < resized)
    starts, weights = starts[row.clamp(0, resized - 1)], weights[:, row.clamp(0, resized - 1)]
    first, stop = int(starts.min()), int(starts.max()) + len(weights)
    return ((starts - first).where(inside, -1), weights), first, stop


def _on(starts: Tensor, weights: Tensor, device: torch.device) -> Taps:
    return Taps(starts.int().to(device), weights.contiguous().to(device))
