"""Parallel scan of one sequence: cut it into pieces, compute how each maps the state, chain the maps, run the pieces.

The scan over chunks has few independent programs if there are few sequences and heads. A piece of a sequence maps the
state S to M S + h, with M [K, K] and h [K, V] per value head; this is exact, whatever the gate. First the maps of all
pieces are computed in parallel (with twice the columns, but no output). Then applying the maps in order yields each
piece's incoming state. Finally all pieces run in parallel from their true states. For a chunk,
M = diag(exp G_C) - (exp(G_C - G) k)^T w and h = (exp(G_C - G) k)^T u (notation of intra.py).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

from dataclasses import dataclass

import triton
import triton.language as tl

from .chunk_index import first_slot, locate, sequence_tokens
from .scan import chunk_update
from .tuning import ScanCosts
from .workspace import record_size

MAX_PIECES = 32


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """How sequences are cut into pieces of `piece_chunks` chunks of `chunk_size` tokens.

    Pieces are never empty, start at a multiple of `chunk_size` and cover the sequence. The last piece of a sequence may
    be shorter.
    """

    chunk_size: int
    piece_chunks: int

    def pieces(self, length: int) -> list[tuple[int, int]]:
        """First token and end of each piece of a sequence with `length` tokens."""
        span = self.chunk_size * self.piece_chunks
        return [(start, min(start + span, length)) for start in range(0, length, span)]

    def slots(self, N: int, T: int, varlen: bool) -> int:
        """Upper bound on the number of pieces, for N sequences of T tokens each, or, with `varlen`, T tokens in all."""
        span = self.chunk_size * self.piece_chunks
        return T // span + N if varlen else N * -(-T // span)


def plan_split(
    *,
    tokens: int,
    longest: int,
    whole_programs: int,
    piece_programs: int,
    chunk_size: int,
    multiprocessors: int,
    costs: ScanCosts,
    split: bool | None = None,
) -> SplitPlan | None:
    """The fastest cut according to the measured costs, or None for no cut. A pure function of its arguments.

    tokens: number of tokens in one row of the batch. longest: number of tokens in the longest sequence. whole_programs:
    number of programs of the scan if no sequence is cut. piece_programs: the same if each sequence is one piece. split:
    True cuts as finely as allowed, False never cuts, None decides by the costs.
    """
    chunks = -(-longest // chunk_size)
    floor = -(-tokens // (chunk_size * MAX_PIECES))  # even one sequence with all tokens has at most MAX_PIECES pieces
    if split is False or chunks < 2:
        return None
    if split:
        return SplitPlan(chunk_size, max(floor, 1))

    best, best_us = None, chunks * costs.scan_us * max(1.0, whole_programs / multiprocessors)
    for target in range(2, MAX_PIECES + 1):
        piece_chunks = max(floor, -(-chunks // target))
        pieces = -(-chunks // piece_chunks)
        waves = -(-piece_programs * pieces // (multiprocessors * costs.programs_per_sm))
        split_us = costs.split_us + pieces * costs.chain_us + piece_chunks * costs.piece_us * waves
        if pieces > 1 and split_us < best_us:
            best, best_us = SplitPlan(chunk_size, piece_chunks), split_us
    return best


@triton.jit(do_not_specialize=["T", "N", "piece_chunks"])
def map_kernel(
    records_ptr, pieces_ptr, cu_seqlens_ptr, T, N, piece_chunks,
    HV: tl.constexpr, PAD_V: tl.constexpr, C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program computes BLOCK_R rows of [M^T; h^T] of one piece, for one value head. For each piece, the workspace
    pieces_ptr holds M^T [BLOCK_K, BLOCK_K], h^T [PAD_V, BLOCK_K] and the incoming state [PAD_V, BLOCK_K] in float32."""
    BLOCKS_R: tl.constexpr = (BLOCK_K + PAD_V + BLOCK_R - 1) // BLOCK_R
    pid = tl.program_id(0)
    hv, slot = pid // BLOCKS_R % HV, pid // (BLOCKS_R * HV)
    n, piece, first, length = locate(slot, cu_seqlens_ptr, T, N, piece_chunks * C)
    start = piece * piece_chunks
    if (start + piece_chunks) * C >= length:  # the last piece: no other piece needs its map
        return

    offs_r = pid % BLOCKS_R * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_k = tl.arange(0, BLOCK_K)
    mask_r = offs_r < BLOCK_K + PAD_V
    mask_h = mask_r & (offs_r >= BLOCK_K)
    S = tl.where(offs_r[:, None] == offs_k[None, :], 1.0, 0.0)  # rows from BLOCK_K on, which become h^T, begin with 0
    record = (first_slot(n, first, T, C, cu_seqlens_ptr is not None) + start).to(tl.int64) * HV + hv
    record_ptr = records_ptr + record * record_size(C, BLOCK_K, PAD_V)
    for _ in range(piece_chunks):
        S, _values = chunk_update(S, record_ptr, offs_r - BLOCK_K, mask_h, C, BLOCK_K, DOT, PRECISION)
        record_ptr += HV * record_size(C, BLOCK_K, PAD_V)
    rows = (slot.to(tl.int64) * HV + hv) * (BLOCK_K + 2 * PAD_V) + offs_r
    tl.store(pieces_ptr + rows[:, None] * BLOCK_K + offs_k[None, :], S, mask=mask_r[:, None])


@triton.jit(do_not_specialize=["T", "N", "piece_chunks"])
def chain_kernel(
    pieces_ptr, initial_ptr, cu_seqlens_ptr, read_slots_ptr, T, N, piece_chunks, stride_initial,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, PAD_V: tl.constexpr,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    STATE_V_FIRST: tl.constexpr, CHAIN_PRECISION: tl.constexpr,
):  # fmt: skip
    """One program computes the incoming states of all pieces of one sequence, in order, for one value head and BLOCK_V
    columns."""
    BLOCKS_V: tl.constexpr = PAD_V // BLOCK_V
    pid = tl.program_id(0)
    hv, n = pid // BLOCKS_V % HV, pid // (BLOCKS_V * HV)
    first, length = sequence_tokens(n, cu_seqlens_ptr, T)
    span = piece_chunks * C

    offs_k, offs_v = tl.arange(0, BLOCK_K), pid % BLOCKS_V * BLOCK_V + tl.arange(0, BLOCK_V)
    offs_p = offs_v[:, None] * BLOCK_K + offs_k[None, :]
    S = tl.zeros([BLOCK_V, BLOCK_K], tl.float32)
    if initial_ptr is not None:
        if STATE_V_FIRST:
            offs_s = offs_v[:, None] * K + offs_k[None, :]
        else:
            offs_s = offs_k[None, :] * V + offs_v[:, None]
        read = n.to(tl.int64)
        if read_slots_ptr is not None:
            read = tl.load(read_slots_ptr + n).to(tl.int64)
        mask_s = (offs_v < V)[:, None] & (offs_k < K)[None, :] & (read >= 0)
        S += tl.load(initial_ptr + read * stride_initial + hv * (K * V) + offs_s, mask=mask_s, other=0.0).to(tl.float32)
    slot = first_slot(n, first, T, span, cu_seqlens_ptr is not None).to(tl.int64)
    pieces_ptr += (slot * HV + hv) * (BLOCK_K + 2 * PAD_V) * BLOCK_K
    tl.store(pieces_ptr + (BLOCK_K + PAD_V) * BLOCK_K + offs_p, S)
    for _ in range(1, (length + span - 1) // span):
        M = tl.load(pieces_ptr + offs_k[:, None] * BLOCK_K + offs_k[None, :])  # M^T
        h = tl.load(pieces_ptr + BLOCK_K * BLOCK_K + offs_p)
        S = tl.dot(S, M, h, input_precision=CHAIN_PRECISION)
        pieces_ptr += HV * (BLOCK_K + 2 * PAD_V) * BLOCK_K
        tl.store(pieces_ptr + (BLOCK_K + PAD_V) * BLOCK_K + offs_p, S)
