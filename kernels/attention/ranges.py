"""Attention of many frames to ranges of one memory, the ranges read on the device: what a captured step can replay."""

import torch

from ..backend import runs_triton
from .checks import AttentionShape, check_inputs
from .reference import attend_ranges_reference


def attend_ranges(
    query: torch.Tensor, memory: torch.Tensor, ranges: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v, each frame over the places of its ranges, with no mask inside.

    query: [S, P, H, D] bfloat16 or float16, D 16, 32, 64 or 128; heads dense, strides of S and P free (a slice of a
        fused projection is read in place).
    memory: [2, T, H, D], keys and values of T places; places dense, 16-byte aligned. In query's dtype, or
        float8_e4m3fn, which is converted to query's dtype before it is multiplied. What lies outside the ranges may
        be anything, NaN too.
    ranges: [S, R, 2] int32 or int64, contiguous, R at most 6: first place and last + 1 of what a frame attends to.
        Empty ones (stop <= first) are skipped; a place in two ranges counts twice; a frame with no place gets zeros.
        They are read on the device and must lie within the T places, which is checked on the CPU only.
    out: [S, P, H, D] in query's dtype, written and returned; allocated if not given.

    The launch depends on the shapes alone, so a CUDA graph that captured a call serves other ranges. Scores, their
    exponentials and both sums are float32, probabilities are rounded to query's dtype. Raises ValueError naming the
    argument, what was expected and what came. Without CUDA (and outside Triton's interpreter) it computes the same in
    PyTorch.

    >>> memory = torch.arange(4.0).reshape(1, 4, 1, 1).expand(2, 4, 1, 16).bfloat16().contiguous()
    >>> query = torch.zeros(2, 1, 1, 16, dtype=torch.bfloat16)
    >>> ranges = torch.tensor([[[0, 4]], [[1, 2]]])
    >>> attend_ranges(query, memory, ranges)[:, 0, 0, 0].tolist()  # equal weights: the means of 0..3 and of 1
    [1.5, 1.0]
    """
    shape = check_inputs(query, memory, ranges, out)
    if out is None:
        out = torch.empty(shape.query, dtype=query.dtype, device=query.device)
    if not runs_triton(query.device):
        return out.copy_(attend_ranges_reference(query, memory, ranges))

    from .ranges_triton import launch_ranges

    if suits_hopper(shape, query.device):
        from .ranges_gluon_sm90 import launch_hopper

        launch_hopper(shape, query, memory, ranges, out)
        launch_ranges(shape, query, memory, ranges, out, repair=True)
    else:
        launch_ranges(shape, query, memory, ranges, out)
    return out


def suits_hopper(shape: AttentionShape, device: torch.device) -> bool:
    """Whether the kernel for Hopper GPUs can do a checked call: heads of 64 or 128."""
    fits = shape.D in (64, 128) and min(shape.S, shape.P, shape.T, shape.R) > 0
    return fits and device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
