"""Cuts of sequences into pieces: properties of the plan, and results that do not depend on the cut."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retinad.kernels.kda.chunk import chunk_kda
from retinad.kernels.kda.context_parallel import MAX_PIECES, SplitPlan, plan_split
from retinad.kernels.kda.tuning import ScanCosts, kda_config

from ..guards import FLOAT32, assert_close
from .oracle import Implementation, assert_matches, make_call

PIECES = Implementation("chunk_kda in pieces", lambda **x: chunk_kda(**x, split=True), {FLOAT32: 1e-5})
COSTS = kda_config((9, 0), 16, 64).costs
chunk_sizes = st.sampled_from([16, 32, 64])
lengths = st.lists(st.integers(0, 5000), min_size=1, max_size=40)


def plan(lengths: list[int], chunk_size: int, programs: int, split: bool | None, known: bool) -> SplitPlan | None:
    longest = max(lengths) if known else -(-sum(lengths) // len(lengths))
    return plan_split(
        tokens=sum(lengths), longest=longest, whole_programs=programs, piece_programs=2 * programs,
        chunk_size=chunk_size, multiprocessors=132, costs=COSTS, split=split,
    )  # fmt: skip


@given(lengths, chunk_sizes, st.integers(1, 300), st.sampled_from([None, True]), st.booleans())
def test_pieces_cover_in_order_aligned_never_empty_and_bounded(
    lengths: list[int], chunk_size: int, programs: int, split: bool | None, known: bool
) -> None:
    cut = plan(lengths, chunk_size, programs, split, known)
    if cut is None:
        return
    for length in lengths:
        pieces = cut.pieces(length)
        assert len(pieces) <= MAX_PIECES
        assert [start for start, _ in pieces] == [0, *[end for _, end in pieces]][: len(pieces)]
        assert (pieces[-1][1] if pieces else 0) == length
        assert all(start % chunk_size == 0 and start < end for start, end in pieces)


@given(lengths, chunk_sizes, st.integers(1, 20))
def test_slots_of_sequences_never_overlap(lengths: list[int], chunk_size: int, piece_chunks: int) -> None:
    """Sequence n's pieces occupy the slots from cu_seqlens[n] // span + n on, which no table needs to list."""
    cut = SplitPlan(chunk_size, piece_chunks)
    span, first, used = chunk_size * piece_chunks, 0, []
    for n, length in enumerate(lengths):
        used += [first // span + n + i for i in range(max(1, len(cut.pieces(length))))]
        first += length
    assert len(set(used)) == len(used)
    assert max(used) < cut.slots(len(lengths), sum(lengths), varlen=True)


def test_equal_sequences_need_no_spare_slots() -> None:
    assert SplitPlan(16, 2).slots(3, 65, varlen=False) == 9


@pytest.mark.parametrize(("T", "programs", "pieces"), [(1005, 16, 1), (2010, 16, 1), (65536, 16, 12), (131072, 8, 24)])
def test_choices_that_were_measured(T: int, programs: int, pieces: int) -> None:
    """On 132 multiprocessors; docs/kda-performance.md has the times of the other choices."""
    cut = plan([T], 64, programs, None, True)
    assert (1 if cut is None else len(cut.pieces(T))) == pieces


def test_enough_sequences_are_not_cut() -> None:
    assert plan([8192] * 64, 64, 64 * 16, None, True) is None


def test_never_and_always() -> None:
    assert plan([10**6], 64, 16, False, True) is None
    assert plan([64], 64, 16, True, True) is None  # one chunk cannot be cut
    cut = plan([65], 64, 16, True, True)
    assert cut is not None
    assert cut.pieces(65) == [(0, 64), (64, 65)]


def test_costs_decide() -> None:
    free = ScanCosts(scan_us=1.0, piece_us=1.0, chain_us=0.0, split_us=0.0, programs_per_sm=100)
    cut = plan_split(
        tokens=640, longest=640, whole_programs=1, piece_programs=1, chunk_size=64, multiprocessors=1, costs=free
    )
    assert cut == SplitPlan(64, 1)


@pytest.mark.parametrize("gate", ["0", "-5", "-20", "mixed", "mild"])
def test_any_gate_in_pieces(device: torch.device, gate: str) -> None:
    assert_matches(make_call(39, H=1, HV=2, gate=gate, device=device).using(chunk_size=16), PIECES)


def test_other_state_layout_in_pieces(device: torch.device) -> None:
    call = make_call(39, device=device).using(chunk_size=16, state_v_first=True)
    assert_matches(call.using(initial_state=call.options["initial_state"].mT.contiguous()), PIECES)


def test_batches_in_pieces(device: torch.device) -> None:
    assert_matches(make_call(50, B=2, K=20, V=70, state=False, device=device).using(chunk_size=16), PIECES)


def test_all_pieces_equal_one(device: torch.device) -> None:
    """The longest possible chain, without decay."""
    pieces = 32 if device.type == "cuda" else 6
    call = make_call(pieces * 16, V=8, gate="0", device=device).using(chunk_size=16)
    o, state = call.using(split=False).run(chunk_kda)
    o_pieces, state_pieces = call.run(PIECES)
    assert_close(o_pieces, o, 1e-5)
    assert_close(state_pieces, state, 1e-5)
