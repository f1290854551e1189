"""Preprocessing of a camera image for the patch embedding: resizes, crops or pads, and normalises it, in two passes.

Resampling is antialiased, bicubic or Lanczos, like Pillow's: one pass over the width and one over the height. The
result of each pass is rounded to integer levels (halves to even) and clipped. So the image between the passes is uint8,
and the levels after the second pass are normalised with a lookup table.
"""

import torch
from torch import Tensor

from ..backend import runs_triton
from .checks import FLOATS, expect
from .preprocess_tables import ImageTables, Taps

WHITE = 255


def preprocess(pixels: Tensor, tables: ImageTables, between: Tensor | None, out: Tensor, patch_size: int = 0) -> None:
    """Resize, crop or pad, and normalise one image.

    Args:
        pixels: uint8 [height, width, 3], BGR, contiguous.
        tables: tables for images of this size, on the same device.
        between: uint8 [*tables.between_shape], scratch memory for the result of the first pass; None if tables.columns
            is None.
        out: bfloat16, float16 or float32, contiguous, fully written. The shape is [3, h, w], or, with a patch size p,
            [h / p * w / p, 3 p p]: patches in row-major order, each laid out like a convolution's weights.
        patch_size: 0 to write an image; otherwise a divisor of h and w, to write patches.

    Raises:
        ValueError: an argument has the wrong shape, dtype, layout or device.
    """
    _check(pixels, tables, between, out, patch_size)
    pixels = pixels[tables.first_row : tables.stop_row]
    if not runs_triton(pixels.device):
        _preprocess_reference(pixels, tables, between, out, patch_size)
        return

    from .preprocess_triton import launch_columns, launch_rows

    if tables.columns is not None and between is not None:
        launch_columns(pixels, tables.columns, between)
        pixels = between
    launch_rows(pixels, tables, out, patch_size)


def preprocess_reference(
    pixels: Tensor, tables: ImageTables, between: Tensor | None, out: Tensor, patch_size: int = 0
) -> None:
    """`preprocess` in plain PyTorch."""
    _preprocess_reference(pixels[tables.first_row : tables.stop_row], tables, between, out, patch_size)


def _preprocess_reference(
    pixels: Tensor, tables: ImageTables, between: Tensor | None, out: Tensor, patch_size: int
) -> None:
    if tables.columns is not None and between is not None:
        pixels = between.copy_(filtered(pixels.transpose(0, 1), tables.columns).transpose(0, 1))
    width, height = tables.model_size
    image = torch.full((height, width, 3), WHITE, dtype=torch.int64, device=pixels.device)
    inside = tables.rows.starts >= 0
    image[inside, tables.pad_left : tables.pad_left + pixels.shape[1]] = filtered(pixels, tables.rows)[inside].long()
    chosen = tables.levels.gather(1, image.flip(2).permute(2, 0, 1).flatten(1)).view(3, height, width)
    if patch_size:
        grid = chosen.view(3, height // patch_size, patch_size, width // patch_size, patch_size)
        chosen = grid.permute(1, 3, 0, 2, 4)
    out.copy_(chosen.reshape(out.shape))


def filtered(pixels: Tensor, taps: Taps) -> Tensor:
    """Filter levels [source, ...] along the first axis; returns whole levels [target, ...] as float32."""
    total = pixels.new_zeros(len(taps.starts), *pixels.shape[1:], dtype=torch.float32)
    shape = (-1, *(1,) * (pixels.dim() - 1))
    for k, weights in enumerate(taps.weights):
        total += weights.view(shape) * pixels[(taps.starts + k).clamp(min=0)]
    return total.round_().clamp_(0, 255)


def _check(pixels: Tensor, tables: ImageTables, between: Tensor | None, out: Tensor, patch_size: int) -> None:
    width, height = tables.source_size
    expect("pixels", pixels, (height, width, 3), (torch.uint8,), tables.levels)
    if (between is None) != (tables.columns is None):
        raise ValueError("between: expected a tensor if and only if the width changes")
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
