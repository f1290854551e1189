"""`chunk_kda` reads and writes rows of a pool of states as `fused_recurrent_kda` does, with sequences whole or cut."""

from functools import cache

import pytest
import torch

from retinad.kernels.kda import chunk
from retinad.kernels.kda.chunk import chunk_kda

from ..guards import FLOAT32, assert_close
from .oracle import Call, Implementation, make_call

CHUNK = Implementation("chunk_kda", chunk_kda, {FLOAT32: 2e-5})
CUTS = [0, 2, 20, 20, 56]
# In Triton's interpreter a call takes seconds, so there only the harder path, in pieces, is tested.
SPLITS = pytest.mark.parametrize("split", [False, True] if torch.cuda.is_available() else [True])


def pooled(device: torch.device, split: bool, state_v_first: bool = False) -> Call:
    """Four sequences (one empty, one padding) over a pool of six slots, in rows that are not next to each other."""
    call = make_call(56, H=1, HV=2, N=4, device=device)
    shape = call.options["initial_state"].mT.shape if state_v_first else call.options["initial_state"].shape
    wide = torch.randn(6, 2, *shape[1:], generator=torch.Generator().manual_seed(3))
    return call.using(
        initial_state=wide.to(device)[:, 1],
        state_indices=torch.tensor([4, -1, 0, 2], dtype=torch.int32, device=device),
        cu_seqlens=torch.tensor(CUTS, device=device),
        cu_seqlens_cpu=torch.tensor(CUTS),
        state_v_first=state_v_first,
        chunk_size=16,
        split=split,
    )


def without_pool(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    slots = call.options["state_indices"].long()
    return call.using(
        initial_state=call.options["initial_state"][slots.clamp(min=0)],
        state_indices=None,
        final_state_indices=None,
        inplace_final_state=False,
    ).run(CHUNK)


@cache
def expected(device: torch.device, split: bool, state_v_first: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and states of `pooled` without a pool; computed once, because the interpreter is slow."""
    return without_pool(pooled(device, split, state_v_first))


@SPLITS
def test_reading_a_pool_leaves_it_alone(device: torch.device, split: bool) -> None:
    call = pooled(device, split).using(output_final_state=False)
    kept = call.options["initial_state"].clone()
    o, state = call.attend(CHUNK)
    o_want, _ = expected(device, split)
    assert state is None
    assert torch.equal(call.options["initial_state"], kept)
    assert torch.equal(o[:, :2], o_want[:, :2])
    assert torch.equal(o[:, 20:], o_want[:, 20:])
    assert (o[:, 2:20] == 0).all()


@SPLITS
@pytest.mark.parametrize("state_v_first", [False, True])
def test_out_of_place_returns_one_state_per_sequence(device: torch.device, split: bool, state_v_first: bool) -> None:
    call = pooled(device, split, state_v_first)
    kept = call.options["initial_state"].clone()
    states, states_want = call.run(CHUNK)[1], expected(device, split, state_v_first)[1]
    assert torch.equal(call.options["initial_state"], kept)
    assert torch.equal(states[[0, 2, 3]], states_want[[0, 2, 3]])
    assert torch.equal(states[2], kept[0])
    assert (states[1] == 0).all()


@SPLITS
def test_in_place_writes_the_slots_it_read(device: torch.device, split: bool) -> None:
    call = pooled(device, split).using(inplace_final_state=True, output_final_state=False)
    pool, kept = call.options["initial_state"], call.options["initial_state"].clone()
    states_want = expected(device, split)[1]
    assert call.run(CHUNK)[1] is pool
    assert torch.equal(pool[[4, 2]], states_want[[0, 3]])
    assert torch.equal(pool[[0, 1, 3, 5]], kept[[0, 1, 3, 5]])


@SPLITS
def test_writes_go_to_the_given_rows_or_nowhere(device: torch.device, split: bool) -> None:
    call = pooled(device, split).using(
        inplace_final_state=True, final_state_indices=torch.tensor([1, 3, -1, -1], device=device)
    )
    pool, kept = call.options["initial_state"], call.options["initial_state"].clone()
    states_want = expected(device, split)[1]
    call.run(CHUNK)
    assert torch.equal(pool[1], states_want[0])
    assert torch.equal(pool[[0, 2, 3, 4, 5]], kept[[0, 2, 3, 4, 5]])


@SPLITS
def test_padding_is_zeros_whatever_its_tokens_hold(device: torch.device, split: bool) -> None:
    call = pooled(device, split)
    o_want, states_want = call.run(CHUNK)
    for tokens in call.tokens.values():
        tokens[:, 2:20] = float("nan")
    o, states = call.run(CHUNK)
    assert torch.equal(o, o_want)
    assert torch.equal(states, states_want)


@pytest.mark.parametrize(("inplace", "moved"), [(False, False), (True, False), (True, True)])
def test_pytorch_does_the_same(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, inplace: bool, moved: bool
) -> None:
    call = pooled(device, False).using(inplace_final_state=inplace)
    if moved:
        call = call.using(final_state_indices=torch.tensor([1, 3, -1, 2], device=device))
    other = call.using(initial_state=call.options["initial_state"].clone())
    o, states = call.run(CHUNK)
    monkeypatch.setattr(chunk, "runs_triton", lambda device: False)
    o_want, states_want = other.run(CHUNK)
    assert_close(o, o_want, CHUNK.tolerance[FLOAT32])
    assert_close(states, states_want, CHUNK.tolerance[FLOAT32])


@pytest.mark.parametrize("triton", [True, False])
def test_a_known_call_rereads_its_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch, triton: bool) -> None:
    if not triton:
        monkeypatch.setattr(chunk, "runs_triton", lambda device: False)
    for rows, target in (([4, -1, 0, 2], 5), ([1, 3, -1, 0], 4)):
        call = pooled(device, False).using(
            state_indices=torch.tensor(rows, device=device),
            final_state_indices=torch.tensor([target, -1, -1, -1], device=device),
            inplace_final_state=True,
        )
        states_want = without_pool(call)[1]
        assert_close(call.run(CHUNK)[1][target], states_want[0], 1e-6)


def test_without_tokens_states_move(device: torch.device) -> None:
    call = pooled(device, False).between(0, 0)
    none = torch.zeros(5, dtype=torch.int64)
    call = call.using(
        cu_seqlens=none.to(device), cu_seqlens_cpu=none, inplace_final_state=True,
        final_state_indices=torch.tensor([1, 3, -1, 2], device=device),
    )  # fmt: skip
    pool, kept = call.options["initial_state"], call.options["initial_state"].clone()
    assert call.run(CHUNK)[1] is pool
    assert torch.equal(pool[1], kept[4])
    assert torch.equal(pool[[0, 2, 3, 4, 5]], kept[[0, 2, 3, 4, 5]])


def test_wrong_writing_is_refused() -> None:
    call = pooled(torch.device("cpu"), False)
    rows = torch.tensor([0, 1, 2, 3])
    for options, message in [
        ({"final_state_indices": rows}, "final_state_indices needs inplace_final_state=True"),
        (
            {"inplace_final_state": True, "initial_state": call.options["initial_state"].half()},
            "expected torch.float32",
        ),
        ({"state_indices": torch.tensor([0, 1, 2, 6])}, "state_indices: expected values from -1 to 5"),
    ]:
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                call.using(**options).run(CHUNK)
