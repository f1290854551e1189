"""The Triton kernels of `preprocess`, in a file of their own so that importing the wrapper needs no triton."""

# Triton's arguments have no Python types: a pointer is whatever the launcher passes.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl
from torch import Tensor

from .pictures import PictureTables, Taps

BLOCK_Y, BLOCK_E = 4, 128  # rows and bytes of a row that a program makes


def launch_columns(pixels: Tensor, taps: Taps, between: Tensor) -> None:
    """Filter pixels [rows, width, 3] over the width into between [rows, n, 3]."""
    rows, width, _ = pixels.shape
    n = between.shape[1]
    columns_kernel[(triton.cdiv(rows, BLOCK_Y), triton.cdiv(n * 3, BLOCK_E))](
        pixels, taps.starts, taps.weights, between, rows, width * 3, n, len(taps.weights), BLOCK_Y, BLOCK_E, num_warps=4
    )


def launch_rows(pixels: Tensor, tables: PictureTables, out: Tensor, patch_size: int) -> None:
    """Filter pixels [rows, n, 3] over the height and write the result's numbers."""
    width, height = tables.model_size
    rows_kernel[(triton.cdiv(height, BLOCK_Y), triton.cdiv(width * 3, BLOCK_E))](
        pixels, tables.rows.starts, tables.rows.weights, tables.levels, out,
        pixels.shape[1], tables.pad_left, height, width, len(tables.rows.weights), patch_size, BLOCK_Y, BLOCK_E,
        num_warps=4,
    )  # fmt: skip


@triton.jit
def whole_level(x):
    # Adding and taking away 1.5 * 2^23 leaves a float32 below 2^22 rounded to a whole number, halves to even.
    return tl.clamp((x + 12582912.0) - 12582912.0, 0.0, 255.0)


@triton.jit
def columns_kernel(
    pixels_ptr, starts_ptr, weights_ptr, between_ptr, ROWS, stride_pixels, N, K,
    BLOCK_Y: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    y = tl.program_id(0) * BLOCK_Y + tl.arange(0, BLOCK_Y)[:, None]
    e = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)[None, :]  # byte e of a row: column e // 3, colour e % 3
    known = e < N * 3
    mask = (y < ROWS) & known  # [BLOCK_Y, BLOCK_E]
    starts = tl.load(starts_ptr + e // 3, mask=known, other=0)
    ptrs = pixels_ptr + y * stride_pixels + starts * 3 + e % 3
    total = tl.zeros([BLOCK_Y, BLOCK_E], dtype=tl.float32)
    for k in range(K):
        weights = tl.load(weights_ptr + k * N + e // 3, mask=known, other=0.0)
        total += weights * tl.load(ptrs + k * 3, mask=mask, other=0).to(tl.float32)
    tl.store(between_ptr + y * (N * 3) + e, whole_level(total).to(tl.uint8), mask=mask)


@triton.jit
def rows_kernel(
    pixels_ptr, starts_ptr, weights_ptr, levels_ptr, out_ptr, N, pad_left, HEIGHT, WIDTH, K,
    PATCH: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    y = tl.program_id(0) * BLOCK_Y + tl.arange(0, BLOCK_Y)[:, None]
    e = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)[None, :]  # column e // 3, and colour e % 3: blue first
    x, c = e // 3, 2 - e % 3
    starts = tl.load(starts_ptr + y, mask=y < HEIGHT, other=-1)
    inside = (starts >= 0) & (x >= pad_left) & (x < pad_left + N)  # [BLOCK_Y, BLOCK_E]
    ptrs = pixels_ptr + starts * (N * 3) + e - pad_left * 3
    total = tl.zeros([BLOCK_Y, BLOCK_E], dtype=tl.float32)
    for k in range(K):
        weights = tl.load(weights_ptr + k * HEIGHT + y, mask=y < HEIGHT, other=0.0)
        total += weights * tl.load(ptrs + k * (N * 3), mask=inside, other=0).to(tl.float32)
    levels = tl.where(inside, whole_level(total).to(tl.int32), 255)
    mask = (y < HEIGHT) & (x < WIDTH)
    values = tl.load(levels_ptr + c * 256 + levels, mask=mask, other=0.0)
    if PATCH > 0:
        patch = (y // PATCH) * (WIDTH // PATCH) + x // PATCH
        offs = ((patch * 3 + c) * PATCH + y % PATCH) * PATCH + x % PATCH
    else:
        offs = (c * HEIGHT + y) * WIDTH + x
    tl.store(out_ptr + offs, values.to(out_ptr.dtype.element_ty), mask=mask)
