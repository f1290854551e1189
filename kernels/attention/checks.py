"""Checks the arguments of attention to ranges. All implementations use these checks, so they accept the same calls.

Dimension letters of the package: S frames, P tokens per frame, H heads, D channels per head, T slots in the KV cache
(one slot holds one token's keys and values), R ranges per frame.
"""

from dataclasses import dataclass

import torch

QUERY_DTYPES = (torch.bfloat16, torch.float16)
CACHE_FP8 = torch.float8_e4m3fn
RANGE_DTYPES = (torch.int32, torch.int64)
HEAD_DIMS = (16, 32, 64, 128)
MAX_RANGES = 6
ALIGNMENT_BYTES = 16  # alignment that vector loads and the copy engine need


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The checked sizes of one call."""

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
    query: torch.Tensor, kv_cache: torch.Tensor, ranges: torch.Tensor, out: torch.Tensor | None
) -> AttentionShape:
    """Check the arguments of one call and return its sizes; the values of `ranges` are checked only on the CPU.

    Raises:
        ValueError: an argument is invalid. The message names it, what was expected and what was passed.
    """
    if query.dim() != 4:
        raise ValueError(f"query: expected shape [S, P, H, D], got {list(query.shape)}")
    S, P, H, D = query.shape
    if query.dtype not in QUERY_DTYPES:
        raise ValueError(f"query: expected one of {list(map(str, QUERY_DTYPES))}, got {query.dtype}")
    if D not in HEAD_DIMS:
        raise ValueError(f"query: expected D to be one of {list(HEAD_DIMS)}, got {D}")
    if kv_cache.dim() != 4 or kv_cache.shape[0] != 2 or kv_cache.shape[2:] != (H, D):
        raise ValueError(f"kv_cache: expected shape [2, T, H, D] = [2, T, {H}, {D}], got {list(kv_cache.shape)}")
    if kv_cache.dtype not in (query.dtype, CACHE_FP8):
        raise ValueError(f"kv_cache: expected {query.dtype} (the dtype of query) or {CACHE_FP8}, got {kv_cache.dtype}")
    T = kv_cache.shape[1]
    if ranges.dim() != 3 or ranges.shape[0] != S or ranges.shape[2] != 2 or ranges.shape[1] > MAX_RANGES:
        raise ValueError(
            f"ranges: expected shape [S, R, 2] = [{S}, R, 2] with R <= {MAX_RANGES}, got {list(ranges.shape)}"
        )
    if ranges.dtype not in RANGE_DTYPES:
        raise ValueError(f"ranges: expected int32 or int64, got {ranges.dtype}")
    shape = AttentionShape(S, P, H, D, T, ranges.shape[1])
    if out is not None and (out.shape != shape.query or out.dtype != query.dtype):
        raise ValueError(
            f"out: expected {query.dtype} and shape {list(shape.query)} like query, "
            f"got {out.dtype} and {list(out.shape)}"
        )
    for name, tensor in (("kv_cache", kv_cache), ("ranges", ranges), ("out", out)):
        if tensor is not None and tensor.device != query.device:
            raise ValueError(f"{name}: expected a tensor on {query.device} like query, got one on {tensor.device}")
    _check_layout(shape, query, kv_cache, ranges, out)
    return shape


def check_beside(shape: AttentionShape, query: torch.Tensor, beside: tuple[torch.Tensor, torch.Tensor] | None) -> None:
    """Check the keys and values of tokens in no slot.

    Raises:
        ValueError: they are invalid. The message says what was expected and what was passed.
    """
    if beside is None:
        return
    key, value = beside
    for tokens in beside:
        if tokens.dim() != 4 or (tokens.shape[0], *tokens.shape[2:]) != (shape.S, shape.H, shape.D):
            expected = f"[S, E, H, D] = [{shape.S}, E, {shape.H}, {shape.D}]"
            raise ValueError(f"beside: expected shape {expected}, got {list(tokens.shape)}")
        if tokens.dtype != query.dtype or tokens.device != query.device:
            expected = f"{query.dtype} on {query.device} like query"
            raise ValueError(f"beside: expected {expected}, got {tokens.dtype} on {tokens.device}")
        if tokens.stride()[2:] != (shape.D, 1):
            raise ValueError(
                f"beside: expected dense heads with strides [.., .., {shape.D}, 1], got {list(tokens.stride())}"
            )
    if key.shape != value.shape or key.stride() != value.stride():
        raise ValueError(
            f"beside: expected keys and values of one layout, got {list(key.shape)} with strides "
            f"{list(key.stride())}, and {list(value.shape)} with {list(value.stride())}"
        )


def _check_layout(
    shape: AttentionShape, query: torch.Tensor, kv_cache: torch.Tensor, ranges: torch.Tensor, out: torch.Tensor | None
) -> None:
    for name, tensor in (("query", query), ("out", out)):
        if tensor is not None and tensor.stride()[2:] != (shape.D, 1):
            raise ValueError(
                f"{name}: expected dense heads with strides [.., .., {shape.D}, 1], got {list(tensor.stride())}"
            )
    row = (shape.H * shape.D, shape.D, 1)
    if kv_cache.stride()[1:] != row:
        raise ValueError(
            f"kv_cache: expected dense slots with strides [.., {row[0]}, {row[1]}, 1], got {list(kv_cache.stride())}"
        )
    if kv_cache.data_ptr() % ALIGNMENT_BYTES or kv_cache.stride(0) * kv_cache.element_size() % ALIGNMENT_BYTES:
        raise ValueError(f"kv_cache: expected keys and values aligned to {ALIGNMENT_BYTES} bytes")
    if not ranges.is_contiguous():
        raise ValueError(
            f"ranges: expected a contiguous tensor, got shape {list(ranges.shape)} with strides {list(ranges.stride())}"
        )
    if ranges.device.type == "cpu":
        _check_slots(ranges, shape.T)


def _check_slots(ranges: torch.Tensor, T: int) -> None:
    for first, stop in ranges.flatten(0, 1).tolist():
        if first < stop and not (first >= 0 and stop <= T):
            raise ValueError(f"ranges: expected slots from 0 to {T}, got {first} to {stop}")
