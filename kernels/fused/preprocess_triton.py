"""The Triton kernels of `preprocess`, in a separate file so that importing the wrapper does not need triton."""

# Triton's arguments have no Python types: a pointer is whatever the launcher passes.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl
from torch import Tensor

from .preprocess_tables import ImageTables, Taps

BLOCK_E = 256
"""Number of bytes of one row that a program processes. On an H200, programs of 2 to 8 rows took up to twice as long."""


def launch_columns(pixels: Tensor, taps: Taps, between: Tensor) -> None:
    """Filter `pixels` [rows, width, 3] over the width, and write the result to `between` [rows, n, 3]."""
    rows, width, _ = pixels.shape
    n = between.shape[1]
    columns_kernel[(rows, triton.cdiv(n * 3, BLOCK_E))](
        pixels, taps.starts, taps.weights, between, width * 3, n, len(taps.weights), BLOCK_E, num_warps=4
    )


def launch_rows(pixels: Tensor, tables: ImageTables, out: Tensor, patch_size: int) -> None:
    """Filter `pixels` [rows, n, 3] over the height, and write normalised values to `out`."""
    width, height = tables.model_size
    rows_kernel[(height, triton.cdiv(width * 3, BLOCK_E))](
        pixels, tables.rows.starts, tables.rows.weights, tables.levels, out,
        pixels.shape[1], tables.pad_left, height, width, len(tables.rows.weights), patch_size, BLOCK_E, num_warps=4,
    )  # fmt: skip


@triton.jit
def whole_level(x):
    # Adding and subtracting 1.5 * 2^23 rounds a float32 number below 2^22 to an integer, halves to even.
    return tl.clamp((x + 12582912.0) - 12582912.0, 0.0, 255.0)


@triton.jit
def columns_kernel(
    pixels_ptr, starts_ptr, weights_ptr, between_ptr, stride_pixels, N, K, BLOCK_E: tl.constexpr
):  # fmt: skip
    y = tl.program_id(0)
    e = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)  # byte of a row: column e // 3, colour e % 3
    mask = e < N * 3
    starts = tl.load(starts_ptr + e // 3, mask=mask, other=0)
    ptrs = pixels_ptr + y * stride_pixels + starts * 3 + e % 3
    total = tl.zeros([BLOCK_E], dtype=tl.float32)
    for k in range(K):
        weights = tl.load(weights_ptr + k * N + e // 3, mask=mask, other=0.0)
        total += weights * tl.load(ptrs + k * 3, mask=mask, other=0).to(tl.float32)
    tl.store(between_ptr + y * (N * 3) + e, whole_level(total).to(tl.uint8), mask=mask)


@triton.jit
def rows_kernel(
    pixels_ptr, starts_ptr, weights_ptr, levels_ptr, out_ptr, N, pad_left, HEIGHT, WIDTH, K,
    PATCH: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    y = tl.program_id(0)
    e = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    x, c = e // 3, 2 - e % 3  # the source is BGR
    start = tl.load(starts_ptr + y)
    inside = (start >= 0) & (x >= pad_left) & (x < pad_left + N)
    ptrs = pixels_ptr + start * (N * 3) + e - pad_left * 3
    total = tl.zeros([BLOCK_E], dtype=tl.float32)
    for k in range(K):
        weight = tl.load(weights_ptr + k * HEIGHT + y)
        total += weight * tl.load(ptrs + k * (N * 3), mask=inside, other=0).to(tl.float32)
    levels = tl.where(inside, whole_level(total).to(tl.int32), 255)
    mask = x < WIDTH
    values = tl.load(levels_ptr + c * 256 + levels, mask=mask, other=0.0)
    if PATCH > 0:
        patch = (y // PATCH) * (WIDTH // PATCH) + x // PATCH
        offs = ((patch * 3 + c) * PATCH + y % PATCH) * PATCH + x % PATCH
    else:
        offs = (c * HEIGHT + y) * WIDTH + x
    tl.store(out_ptr + offs, values.to(out_ptr.dtype.element_ty), mask=mask)
