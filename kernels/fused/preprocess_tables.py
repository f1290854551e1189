"""Tables for preprocessing images of one size: filter taps, crop, padding and normalised levels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

SUPPORT = 2.0
LANCZOS_SUPPORT = 3.0
"""Radius of the cubic filter, and of the Lanczos filter, in source pixels when an image is enlarged."""


class ResizeGeometry(Protocol):
    """How images of one size are fitted to the model's input; all sizes are (width, height)."""

    @property
    def source_size(self) -> tuple[int, int]:
        """Size of the source image."""

    @property
    def resized(self) -> tuple[int, int]:
        """Size after resampling."""

    @property
    def crop_top(self) -> int:
        """Number of rows cropped from the top of the resized image."""

    @property
    def crop_left(self) -> int:
        """Number of columns cropped from the left of the resized image."""

    @property
    def lanczos(self) -> bool:
        """Whether the filter is Lanczos's instead of the cubic one."""

    @property
    def pad_left(self) -> int:
        """Number of white columns added at the left."""

    @property
    def pad_top(self) -> int:
        """Number of white rows added at the top."""

    @property
    def model_size(self) -> tuple[int, int]:
        """Size of the model's input."""


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """A filter: target pixel i is the sum, over k, of weights[k, i] times source pixel starts[i] + k.

    Attributes:
        starts: int32 [n], the first source pixel of each target pixel; negative where the target pixel is white.
        weights: float32 [K, n], the weights of the source pixels.
    """

    starts: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ImageTables:
    """Tables of `preprocess` for images of one size.

    Attributes:
        source_size, model_size: width and height.
        first_row, stop_row: first row of the source that is read, and the row after the last one that is read.
        columns: the filter over the width, with one entry per column that is kept of the resized image; None if the
            width is unchanged.
        rows: the filter over the height, with one entry per row of the result; source rows count from `first_row`.
        pad_left: number of white columns at the left.
        levels: float32 [3, 256], the normalised value of each level of red, green and blue.
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
        """Shape of the image between the two passes: rows, columns, channels."""
        width = self.source_size[0] if self.columns is None else self.columns.starts.shape[0]
        return (self.stop_row - self.first_row, width, 3)


def image_tables(
    geometry: ResizeGeometry, mean: Sequence[float], std: Sequence[float], device: torch.device
) -> ImageTables:
    """Build the tables for one image size; the caller keeps them.

    Args:
        geometry: sizes, crop and padding.
        mean, std: mean and standard deviation of red, green and blue, for levels scaled to [0, 1].
        device: where the tables are stored.
    """
    width, height = geometry.source_size
    rows, first, stop = _model_rows(geometry)
    columns = _model_columns(geometry)
    scale = torch.arange(256, dtype=torch.float32)[None] / 255.0
    levels = (scale - torch.tensor(mean)[:, None]) / torch.tensor(std)[:, None]
    return ImageTables(
        (width, height),
        geometry.model_size,
        first,
        stop,
        None if columns is None else _on(*columns, device),
        _on(*rows, device),
        geometry.pad_left,
        levels.to(device),
    )


def filter_taps(source: int, target: int, *, lanczos: bool, device: torch.device) -> Taps:
    """The filter that resamples `source` pixels to `target`."""
    return _on(*_taps(source, target, lanczos=lanczos), device)


def _taps(source: int, target: int, *, lanczos: bool) -> tuple[Tensor, Tensor]:
    # Returns starts int64 [target] and weights [K, target]; every tap lies inside the source. Weights are computed in
    # float32, as in PyTorch. With exact weights, one level in 100 of an enlarged image is rounded differently from
    # PyTorch; with these, one in 4000.
    scale = torch.tensor(source, dtype=torch.float32) / target
    stretch, support = scale.clamp(min=1.0), LANCZOS_SUPPORT if lanczos else SUPPORT
    centres = scale * (torch.arange(target, dtype=torch.float32) + 0.5)
    first = (centres - support * stretch + 0.5).long().clamp(min=0)
    stop = (centres + support * stretch + 0.5).long().clamp(max=source)
    K = int((stop - first).max())
    starts = first.clamp(max=source - K)
    sources = starts + torch.arange(K)[:, None]  # [K, target]
    offsets = (sources - centres + 0.5) * (1.0 / stretch)
    weights = _lanczos(offsets) if lanczos else _cubic(offsets)
    weights = weights.where((sources >= first) & (sources < stop), 0.0)
    return starts, weights / weights.sum(0)


def _cubic(x: Tensor) -> Tensor:
    # The cubic convolution of R. Keys ("Cubic convolution interpolation", 1981) with a = -1/2, like Pillow's.
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return near.where(x < 1, far.where(x < 2, 0.0))


def _lanczos(x: Tensor) -> Tensor:
    return (x.sinc() * (x / LANCZOS_SUPPORT).sinc()).where(x.abs() < LANCZOS_SUPPORT, 0.0)


def _model_columns(geometry: ResizeGeometry) -> tuple[Tensor, Tensor] | None:
    # The filter of each column that is kept; None if all columns are as in the source.
    source, resized, left = geometry.source_size[0], geometry.resized[0], geometry.crop_left
    kept = min(resized - left, geometry.model_size[0])
    if source == resized == kept:
        return None
    if source == resized:
        return torch.arange(left, left + kept), torch.ones(1, kept)
    starts, weights = _taps(source, resized, lanczos=geometry.lanczos)
    return starts[left : left + kept], weights[:, left : left + kept]


def _model_rows(geometry: ResizeGeometry) -> tuple[tuple[Tensor, Tensor], int, int]:
    # The filter of each row of the result, the first source row that the filters read, and the row after the last one.
    source, resized, rows = geometry.source_size[1], geometry.resized[1], geometry.model_size[1]
    if source == resized:
        starts, weights = torch.arange(source), torch.ones(1, source)
    else:
        starts, weights = _taps(source, resized, lanczos=geometry.lanczos)
    row = torch.arange(rows) + geometry.crop_top - geometry.pad_top
    inside = (row >= 0) & (row < resized)
    starts, weights = starts[row.clamp(0, resized - 1)], weights[:, row.clamp(0, resized - 1)]
    first, stop = int(starts.min()), int(starts.max()) + len(weights)
    return ((starts - first).where(inside, -1), weights), first, stop


def _on(starts: Tensor, weights: Tensor, device: torch.device) -> Taps:
    return Taps(starts.int().to(device), weights.contiguous().to(device))
