"""The steps between the QKV projection and attention, fused: norm, rotation, and appending to the KV cache."""

import torch
from torch import Tensor
from torch.nn import functional

from ..backend import runs_triton
from .checks import FLOAT32, FLOATS, expect
from .qk_norm_rope_types import FLOAT8, FLOAT8_MAX, Append, HeadNorm, RotaryTables


def qk_norm_rope(
    packed: Tensor,
    norm: HeadNorm | None,
    tables: RotaryTables | None,
    *,
    query: Tensor | None = None,
    append: Append | None = None,
) -> None:
    """Normalise and rotate queries and keys in float32, and store them where attention reads them.

    Args:
        packed: queries, keys and values [F, P, 3, H, D], contiguous, bfloat16, float16 or float32; mutated. Queries are
            overwritten in place unless `query` is given, and keys unless `append` is given; values are unchanged.
        norm: the norm, which is applied before the rotation; None for no norm.
        tables: the rotation; None for no rotation.
        query: where to write queries instead, [F, P, H, D], contiguous, in packed's dtype; fully written.
        append: the cache and the slots where keys and values are written; float8 saturates at 448. Slots of different
            frames must not overlap.

    Raises:
        ValueError: an argument is empty or has the wrong shape, dtype, layout or device; or norm, tables, query and
            append are all None, so that there is nothing to do.
    """
    _check(packed, norm, tables, query, append)
    if not runs_triton(packed.device):
        qk_norm_rope_reference(packed, norm, tables, query=query, append=append)
        return

    from .qk_norm_rope_triton import launch_qk_norm_rope

    launch_qk_norm_rope(packed, norm, tables, query, append)


def qk_norm_rope_reference(
    packed: Tensor,
    norm: HeadNorm | None,
    tables: RotaryTables | None,
    *,
    query: Tensor | None = None,
    append: Append | None = None,
) -> None:
    """`qk_norm_rope` in plain PyTorch; reads `slots` on the host."""
    queries, keys, values = packed.unbind(2)
    new_queries, new_keys = queries.float(), keys.float()
    if norm is not None:
        D = packed.shape[-1]
        new_queries = functional.layer_norm(new_queries, (D,), norm.query_weight, norm.query_bias, norm.eps)
        new_keys = functional.layer_norm(new_keys, (D,), norm.key_weight, norm.key_bias, norm.eps)
    if tables is not None:
        new_queries, new_keys = _rotated(new_queries, tables), _rotated(new_keys, tables)
    (queries if query is None else query).copy_(new_queries)
    if append is None:
        keys.copy_(new_keys)
    else:
        _append(append, new_keys, values)


def _rotated(tokens: Tensor, tables: RotaryTables) -> Tensor:
    # The last axis has the two elements of a pair: [F, P, H, D / 2, 2], or [F, P, H, 2, D / 4, 2].
    shape = tokens.shape[:-1]
    split = tokens.reshape(*shape, -1, 2) if tables.pairs else tokens.reshape(*shape, 2, 2, -1).mT
    a, b = split.flatten(3, -2).unbind(-1)
    cos, sin = tables.cos.unsqueeze(2), tables.sin.unsqueeze(2)
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1)
    return (turned if tables.pairs else turned.reshape(split.shape).mT).flatten(3)


def _append(append: Append, keys: Tensor, values: Tensor) -> None:
    T, P = append.kv_cache.shape[1], keys.shape[1]
    for f, slot in enumerate(append.slots.tolist()):
        first, end = max(0, -slot), min(P, T - slot)
        if first < end:
            for target, source in zip(append.kv_cache, (keys[f], values[f]), strict=True):
                target[slot + first : slot + end] = _fitting(source[first:end], target.dtype)


def _fitting(values: Tensor, dtype: torch.dtype) -> Tensor:
    return (values.clamp(-FLOAT8_MAX, FLOAT8_MAX) if dtype == FLOAT8 else values).to(dtype)


def _check(
    packed: Tensor,
    norm: HeadNorm | None,
    tables: RotaryTables | None,
    query: Tensor | None,
    append: Append | None,
) -> None:
    if packed.dim() != 5 or packed.shape[2] != 3:
        raise ValueError(f"packed: expected [F, P, 3, H, D], got {list(packed.shape)}")
    expect("packed", packed, tuple(packed.shape), FLOATS, packed)
    F, P, _, H, D = packed.shape
    if norm is None and tables is None and query is None and append is None:
        raise ValueError("there is nothing to do: expected at least one of norm, tables, query and append")
    if norm is not None:
        for name in ("query_weight", "query_bias", "key_weight", "key_bias"):
            expect(name, getattr(norm, name), (D,), FLOAT32, packed)
    if tables is not None:
        if D % (2 if tables.pairs else 4):
            raise ValueError(f"packed: expected D to be a multiple of {2 if tables.pairs else 4}, got {D}")
        frames = 1 if tables.cos.shape[:1] == (1,) else F
        expect("cos", tables.cos, (frames, P, D // 2), FLOAT32, packed)
        expect("sin", tables.sin, (frames, P, D // 2), FLOAT32, packed)
    if query is not None:
        expect("query", query, (F, P, H, D), (packed.dtype,), packed)
    if append is not None:
        T = append.kv_cache.shape[1] if append.kv_cache.dim() == 4 else 0
        expect("kv_cache", append.kv_cache, (2, T, H, D), (packed.dtype, FLOAT8), packed)
        expect("slots", append.slots, (F,), (torch.int64,), packed)
