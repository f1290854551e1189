"""Triton device function that finds which tokens a program works on, from cumulative lengths on the device.

A table of chunks made on the host would cost a copy and a synchronisation a call. Instead sequence n, cut into spans
of SPAN tokens, owns the slots from cu_seqlens[n] // SPAN + n on: they never overlap, because a sequence of L tokens has
at most floor((first + L) / SPAN) - floor(first / SPAN) + 1 spans. At most one slot a sequence stays empty.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl


@triton.jit
def sequence_tokens(n, cu_seqlens_ptr, T):
    """First token (int64) and length of sequence n; a bad table cannot point outside [0, T)."""
    if cu_seqlens_ptr is None:
        return n.to(tl.int64) * T, T
    first = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + n).to(tl.int32), 0), T)
    end = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + n + 1).to(tl.int32), first), T)
    return first.to(tl.int64), end - first


@triton.jit
def first_slot(n, first, T, span, VARLEN: tl.constexpr):
    """Slot of sequence n's first span, whose first token is `first`."""
    if VARLEN:
        return first.to(tl.int32) // span + n
    return n * ((T + span - 1) // span)


@triton.jit
def locate(slot, cu_seqlens_ptr, T, N, span):
    """Of the slot: its sequence, the index of the span in the sequence, the sequence's first token and length."""
    if cu_seqlens_ptr is None:
        spans = (T + span - 1) // span
        n = slot // spans
        return n, slot % spans, n.to(tl.int64) * T, T
    low = slot * 0
    high = low + N - 1
    while low < high:
        middle = (low + high + 1) // 2
        first = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + middle).to(tl.int32), 0), T)
        after = first // span + middle > slot
        high = tl.where(after, middle - 1, high)
        low = tl.where(after, low, middle)
    first, length = sequence_tokens(low, cu_seqlens_ptr, T)
    return low, slot - (first.to(tl.int32) // span + low), first, length
