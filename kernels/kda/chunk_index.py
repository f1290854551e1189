"""Triton device functions with which a program finds its tokens, from cumulative lengths on the device.

A table of chunks built on the host would cost a copy and a synchronisation per call. Instead, each sequence is cut into
spans of SPAN tokens, and sequence n owns the slots from cu_seqlens[n] // SPAN + n on, one per span. The slots of
different sequences never overlap, because a sequence of L tokens that starts at token `first` has at most
floor((first + L) / SPAN) - floor(first / SPAN) + 1 spans. At most one slot per sequence stays empty.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl


@triton.jit
def clamp(x, low, high):
    return tl.minimum(tl.maximum(x.to(tl.int32), low), high)


@triton.jit
def sequence_tokens(n, cu_seqlens_ptr, T):
    """First token (int64) and length of sequence n, clamped so that invalid cuts cannot point outside [0, T)."""
    if cu_seqlens_ptr is None:
        first, length = n.to(tl.int64) * T, T
    else:
        start = clamp(tl.load(cu_seqlens_ptr + n), 0, T)
        length = clamp(tl.load(cu_seqlens_ptr + n + 1), start, T) - start
        first = start.to(tl.int64)
    return first, length


@triton.jit
def first_slot(n, first, T, span, VARLEN: tl.constexpr):
    """Slot of the first span of sequence n, which starts at token `first`."""
    if VARLEN:
        slot = first.to(tl.int32) // span + n
    else:
        slot = n * ((T + span - 1) // span)
    return slot


@triton.jit
def locate(slot, cu_seqlens_ptr, T, N, span):
    """A slot's sequence, the index of the slot's span in that sequence, and the sequence's first token and length."""
    if cu_seqlens_ptr is None:
        n = slot // ((T + span - 1) // span)
    else:
        n, high = slot * 0, slot * 0 + N - 1
        while n < high:
            middle = (n + high + 1) // 2
            after = clamp(tl.load(cu_seqlens_ptr + middle), 0, T) // span + middle > slot
            high = tl.where(after, middle - 1, high)
            n = tl.where(after, n, middle)
    first, length = sequence_tokens(n, cu_seqlens_ptr, T)
    return n, slot - first_slot(n, first, T, span, cu_seqlens_ptr is not None), first, length
