"""From a camera's bytes to what the patch embedding takes, in two passes: resampled, cropped or padded, normalised.

Resampling is antialiased bicubic as Pillow's and PyTorch's: a pass over the width, one over the height, each rounded to
whole levels (halves to even) and clipped. So nothing but levels of 255 lies between the passes, and after them a table
turns levels into numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..backend import runs_triton
from .checks import FLOATS, expect

WHITE = 255
SUPPORT = 2.0
"""Source pixels on each side of its centre that the cubic filter reaches, where pictures are enlarged."""


class Fit(Protocol):
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
class PictureTables:
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


def picture_tables(how: Fit, mean: Sequence[float], std: Sequence[float], device: torch.device) -> PictureTables:
    """Make the tables of one size, once; they are kept by the caller.

    Args:
        how: sizes, crop and padding.
        mean, std: of red, green and blue, in [0, 1]; subtracted, then divided by.
        device: where the tables will lie.
    """
    width, height = how.source_size
    rows, first, stop = _model_rows(how)
    columns = None if how.resized[0] == width else _on(*_taps(width, how.resized[0]), device)
    scale = torch.arange(256, dtype=torch.float32)[None] / 255.0
    levels = (scale - torch.tensor(mean)[:, None]) / torch.tensor(std)[:, None]
    return PictureTables(
        (width, height), how.model_size, first, stop, columns, _on(*rows, device), how.pad_left, levels.to(device)
    )


def preprocess(pixels: Tensor, tables: PictureTables, between: Tensor | None, out: Tensor, patch_size: int = 0) -> None:
    """Write the picture that the model sees.

    Args:
        pixels: uint8 [height, width, 3], BGR, contiguous, on the device.
        tables: of this size.
        between: uint8 [*tables.between_shape], scratch, written; None where tables.columns is None.
        out: bfloat16, float16 or float32, contiguous, written whole: [3, h, w]; with a patch size p
            [h / p * w / p, 3 p p], patches row by row and in each the channels row by row, as a convolution's weights.
        patch_size: 0 for the picture. Else a divisor of h and w.

    Raises:
        ValueError: an argument has another shape, dtype, layout or device.
    """
    _check(pixels, tables, between, out, patch_size)
    pixels = pixels[tables.first_row : tables.stop_row]
    if not runs_triton(pixels.device):
        _preprocess_reference(pixels, tables, between, out, patch_size)
        return

    from .pictures_triton import launch_columns, launch_rows

    if tables.columns is not None and between is not None:
        launch_columns(pixels, tables.columns, between)
        pixels = between
    launch_rows(pixels, tables, out, patch_size)


def preprocess_reference(
    pixels: Tensor, tables: PictureTables, between: Tensor | None, out: Tensor, patch_size: int = 0
) -> None:
    """The same in plain PyTorch."""
    _preprocess_reference(pixels[tables.first_row : tables.stop_row], tables, between, out, patch_size)


def _preprocess_reference(
    pixels: Tensor, tables: PictureTables, between: Tensor | None, out: Tensor, patch_size: int
) -> None:
    if tables.columns is not None and between is not None:
        pixels = between.copy_(_filtered(pixels.transpose(0, 1), tables.columns).transpose(0, 1))
    width, height = tables.model_size
    picture = torch.full((height, width, 3), WHITE, dtype=torch.int64, device=pixels.device)
    inside = tables.rows.starts >= 0
    picture[inside, tables.pad_left : tables.pad_left + pixels.shape[1]] = _filtered(pixels, tables.rows)[inside].long()
    chosen = tables.levels.gather(1, picture.flip(2).permute(2, 0, 1).flatten(1)).view(3, height, width)
    if patch_size:
        grid = chosen.view(3, height // patch_size, patch_size, width // patch_size, patch_size)
        chosen = grid.permute(1, 3, 0, 2, 4)
    out.copy_(chosen.reshape(out.shape))


def _filtered(pixels: Tensor, taps: Taps) -> Tensor:
    # Along the first dimension; float32 whole levels.
    total = pixels.new_zeros(len(taps.starts), *pixels.shape[1:], dtype=torch.float32)
    for k, weights in enumerate(taps.weights):
        total += weights[:, None, None] * pixels[(taps.starts + k).clamp(min=0)]
    return total.round_().clamp_(0, 255)


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


def _model_rows(how: Fit) -> tuple[tuple[Tensor, Tensor], int, int]:
    # The filter of each row of the result, and the first and last + 1 of the source rows that it reads.
    source, resized, rows = how.source_size[1], how.resized[1], how.model_size[1]
    if source == resized:
        starts, weights = torch.arange(source), torch.ones(1, source)
    else:
        starts, weights = _taps(source, resized)
    row = torch.arange(rows) + how.crop_top - how.pad_top
    inside = (row >= 0) & (row < resized)
    starts, weights = starts[row.clamp(0, resized - 1)], weights[:, row.clamp(0, resized - 1)]
    first, stop = int(starts.min()), int(starts.max()) + len(weights)
    return ((starts - first).where(inside, -1), weights), first, stop


def _on(starts: Tensor, weights: Tensor, device: torch.device) -> Taps:
    return Taps(starts.int().to(device), weights.contiguous().to(device))


def _check(pixels: Tensor, tables: PictureTables, between: Tensor | None, out: Tensor, patch_size: int) -> None:
    width, height = tables.source_size
    expect("pixels", pixels, (height, width, 3), (torch.uint8,), tables.levels)
    if (between is None) != (tables.columns is None):
        raise ValueError("between: expected a tensor exactly where the width changes")
    if between is not None:
        expect("between", between, tables.between_shape, (torch.uint8,), pixels)
    width, height = tables.model_size
    if not patch_size:
        expect("out", out, (3, height, width), FLOATS, pixels)
        return
    if patch_size < 0 or height % patch_size or width % patch_size:
        raise ValueError(f"patch_size: expected a divisor of {width} and {height}, got {patch_size}")
    patches = (height // patch_size) * (width // patch_size)
    expect("out", out, (patches, 3 * patch_size * patch_size), FLOATS, pixels)
