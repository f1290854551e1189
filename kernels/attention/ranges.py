"""Attention of frames to ranges of a KV cache. Ranges are read on the device, so captured steps can be replayed."""

import torch

from ..backend import runs_triton
from .checks import AttentionShape, check_beside, check_inputs
from .reference import attend_ranges_reference


def attend_ranges(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    ranges: torch.Tensor,
    out: torch.Tensor | None = None,
    beside: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v for each frame over the slots of its ranges, with no mask inside a range.

    query: [S, P, H, D] bfloat16 or float16; D is 16, 32, 64 or 128. Heads must be dense, but the strides of S and P are
        free (a slice of a fused projection is read in place).
    kv_cache: [2, T, H, D], keys and values of T slots, which must be dense and 16-byte aligned. The dtype is query's,
        or float8_e4m3fn, which is converted to query's dtype before it is multiplied. Slots outside the ranges may hold
        anything, including NaN.
    ranges: [S, R, 2] int32 or int64, contiguous, R at most 6. Each range is the first slot that a frame attends to, and
        the slot after the last one. Empty ranges (stop <= first) are skipped; a slot in two ranges counts twice; a
        frame without slots gets zeros. Ranges are read on the device and must lie within the T slots; this is checked
        only for CPU tensors.
    out: [S, P, H, D] in query's dtype, written and returned; allocated if not given.
    beside: keys and values, [S, E, H, D] each in query's dtype, of tokens that are in no slot: each frame attends to
        its E tokens besides the slots. Heads must be dense, but the strides of S and E are free, the same for both.
        With it, the Hopper kernel is not used.

    The launch depends on shapes alone, so a CUDA graph that captured a call can be replayed with other ranges. Scores,
    their exponentials and both sums are float32; probabilities are rounded to query's dtype. Without CUDA (and outside
    Triton's interpreter), the same is computed in PyTorch.

    Raises:
        ValueError: an argument is invalid. The message names it, what was expected and what was passed.

    >>> kv_cache = torch.arange(4.0).reshape(1, 4, 1, 1).expand(2, 4, 1, 16).bfloat16().contiguous()
    >>> query = torch.zeros(2, 1, 1, 16, dtype=torch.bfloat16)
    >>> ranges = torch.tensor([[[0, 4]], [[1, 2]]])
    >>> attend_ranges(query, kv_cache, ranges)[:, 0, 0, 0].tolist()  # equal weights: the means of 0..3 and of 1
    [1.5, 1.0]
    """
    shape = check_inputs(query, kv_cache, ranges, out)
    check_beside(shape, query, beside)
    if out is None:
        out = torch.empty(shape.query, dtype=query.dtype, device=query.device)
    if not runs_triton(query.device):
        return out.copy_(attend_ranges_reference(query, kv_cache, ranges, beside=beside))

    from .ranges_triton import launch_ranges

    if beside is None and supports_sm90(shape, query.device):
        from .ranges_gluon_sm90 import launch_sm90

        launch_sm90(shape, query, kv_cache, ranges, out)
        launch_ranges(shape, query, kv_cache, ranges, out, repair=True)
    else:
        launch_ranges(shape, query, kv_cache, ranges, out, beside=beside)
    return out


def supports_sm90(shape: AttentionShape, device: torch.device) -> bool:
    """Whether the Hopper kernel supports a call whose arguments are checked: D must be 64 or 128, and no size 0."""
    fits = shape.D in (64, 128) and min(shape.S, shape.P, shape.T, shape.R) > 0
    return fits and device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
