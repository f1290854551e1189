"""One validation of the arguments of attention to ranges, so that all implementations take and refuse the same calls.

Dimension letters of the package: S sights (one a frame), P tokens of a frame, H heads, D channels of a head, T places
of the memory, R ranges of a sight.
"""

from dataclasses import dataclass

import torch

QUERY_DTYPES = (torch.bfloat16, torch.float16)
MEMORY_FP8 = torch.float8_e4m3fn
RANGE_DTYPES = (torch.int32, torch.int64)
HEAD_DIMS = (16, 32, 64, 128)
MAX_RANGES = 6
ALIGNMENT_BYTES = 16  # what a load of a row's piece wants


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes of one call, checked."""

    S: int
    P: int
    H: int
    D: int
    T: int
    R: int

    @property
    def query(self) -> tuple[int, int, int, int]:
        return (self.S, self.P, self.H, self.D)


def check_inputs(
    query: torch.Tensor, memory: torch.Tensor, ranges: torch.Tensor, out: torch.Tensor | None
) -> AttentionShape:
    """Check the arguments of one call and return its sizes; the values of `ranges` are looked at only on the CPU.

    Raises ValueError naming the argument, the shape (or value) expected and the one that came.
    """
    if query.dim() != 4:
        raise ValueError(f"query: expected shape [S, P, H, D], got {list(query.shape)}")
    S, P, H, D = query.shape
    if query.dtype not in QUERY_DTYPES:
        raise ValueError(f"query: expected one of {list(map(str, QUERY_DTYPES))}, got {query.dtype}")
    if D not in HEAD_DIMS:
        raise ValueError(f"query: expected D to be one of {list(HEAD_DIMS)}, got {D}")
    if memory.dim() != 4 or memory.shape[0] != 2 or memory.shape[2:] != (H, D):
        raise ValueError(f"memory: expected shape [2, T, H, D] = [2, T, {H}, {D}], got {list(memory.shape)}")
    if memory.dtype not in (query.dtype, MEMORY_FP8):
        raise ValueError(f"memory: expected {query.dtype}, as query is, or {MEMORY_FP8}, got {memory.dtype}")
    T = memory.shape[1]
    if ranges.dim() != 3 or ranges.shape[0] != S or ranges.shape[2] != 2 or ranges.shape[1] > MAX_RANGES:
        raise ValueError(
            f"ranges: expected shape [S, R, 2] = [{S}, R, 2] with R <= {MAX_RANGES}, got {list(ranges.shape)}"
        )
    if ranges.dtype not in RANGE_DTYPES:
        raise ValueError(f"ranges: expected int32 or int64, got {ranges.dtype}")
    shape = AttentionShape(S, P, H, D, T, ranges.shape[1])
    if out is not None and (out.shape != shape.query or out.dtype != query.dtype):
        raise ValueError(
            f"out: expected {query.dtype} {list(shape.query)}, as query is, got {out.dtype} {list(out.shape)}"
        )
    for name, tensor in (("memory", memory), ("ranges", ranges), ("out", out)):
        if tensor is not None and tensor.device != query.device:
            raise ValueError(f"{name}: expected a tensor on {query.device}, as query is, got one on {tensor.device}")
    _check_layout(shape, query, memory, ranges, out)
    return shape


def _check_layout(
    shape: AttentionShape, query: torch.Tensor, memory: torch.Tensor, ranges: torch.Tensor, out: torch.Tensor | None
) -> None:
    for name, tensor in (("query", query), ("out", out)):
        if tensor is not None and tensor.stride()[2:] != (shape.D, 1):
            raise ValueError(
                f"{name}: expected dense heads, strides [.., .., {shape.D}, 1], got {list(tensor.stride())}"
            )
    row = (shape.H * shape.D, shape.D, 1)
    if memory.stride()[1:] != row:
        raise ValueError(
            f"memory: expected dense places, strides [.., {row[0]}, {row[1]}, 1], got {list(memory.stride())}"
        )
    if memory.data_ptr() % ALIGNMENT_BYTES or memory.stride(0) * memory.element_size() % ALIGNMENT_BYTES:
        raise ValueError(f"memory: expected keys and values that begin at a multiple of {ALIGNMENT_BYTES} bytes")
    if not ranges.is_contiguous():
        raise ValueError(f"ranges: expected a contiguous tensor, got strides {list(ranges.stride())}")
    if ranges.device.type == "cpu":
        _check_places(ranges, shape.T)


def _check_places(ranges: torch.Tensor, T: int) -> None:
    for first, stop in ranges.flatten(0, 1).tolist():
        if first < stop and not (first >= 0 and stop <= T):
            raise ValueError(f"ranges: expected places from 0 to {T}, got {first} to {stop}")
