"""Exact properties of delta attention, tested on the float64 definition and on each kernel."""

import math
from itertools import pairwise

import pytest
import torch

from ..guards import BFLOAT16, FLOAT32, FLOAT64, GuardedEmpty, assert_close, guarded, sliced
from .oracle import ALL, FUSED, KERNELS, Call, Implementation, each, make_call


def concatenated(call: Call, implementation: Implementation, cuts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    state, parts = call.options["initial_state"], []
    for first, end in pairwise(cuts):
        o, state = call.between(first, end).using(initial_state=state).run(implementation)
        parts.append(o)
    return torch.cat(parts, dim=1), state


@each(ALL)
def test_any_cut_equals_the_uncut_run(implementation: Implementation, dtype: torch.dtype, device: torch.device) -> None:
    call = make_call(37, dtype=dtype, device=device)
    o, state = call.run(implementation)
    o_cut, state_cut = concatenated(call, implementation, [0, 5, 5, 6, 21, 37])
    assert_close(o_cut, o, 2 * implementation.tolerance[dtype])
    assert_close(state_cut, state, 2 * implementation.tolerance[dtype])


@each(ALL)
def test_an_empty_segment_changes_nothing(
    implementation: Implementation, dtype: torch.dtype, device: torch.device
) -> None:
    call = make_call(0, dtype=dtype, device=device)
    o, state = call.run(implementation)
    assert o.shape == call.tokens["v"].shape
    assert torch.equal(state.cpu().double(), call.options["initial_state"].cpu().double())


@each(ALL)
def test_without_beta_the_state_only_decays(
    implementation: Implementation, dtype: torch.dtype, device: torch.device
) -> None:
    call = make_call(19, dtype=dtype, device=device)
    call = call.having(beta=torch.zeros_like(call.tokens["beta"]))
    decay = call.tokens["g"].double().sum(1).exp()[..., None]
    assert_close(call.run(implementation)[1], decay * call.options["initial_state"], implementation.tolerance[dtype])


def undecayed(dtype: torch.dtype, device: torch.device, keys: torch.Tensor, beta: float, V: int = 24) -> Call:
    T, K = keys.shape
    call = make_call(T, K=K, V=V, gate="0", dtype=dtype, device=device)
    return call.having(k=keys.to(device, dtype)[None, :, None], beta=torch.full_like(call.tokens["beta"], beta))


@each(ALL)
def test_orthonormal_keys_recall_their_values(
    implementation: Implementation, dtype: torch.dtype, device: torch.device
) -> None:
    """Keys are rows of a Hadamard matrix, whose entries +-1/4 are exact in every dtype."""
    call = undecayed(dtype, device, hadamard(16), beta=1.0).using(initial_state=None)
    state = call.run(implementation)[1]
    recalled = torch.einsum("bthk,bhkv->bthv", call.tokens["k"].double(), state.double())
    assert_close(recalled, call.tokens["v"], implementation.tolerance[dtype])


@each(ALL)
def test_one_key_keeps_its_last_value(implementation: Implementation, dtype: torch.dtype, device: torch.device) -> None:
    call = undecayed(dtype, device, hadamard(16)[:1].expand(3, -1), beta=1.0).using(initial_state=None)
    expected = call.tokens["k"][:, 2, :, :, None].double() * call.tokens["v"][:, 2, :, None, :].double()
    assert_close(call.run(implementation)[1], expected, implementation.tolerance[dtype])


@each(ALL)
def test_beta_two_reflects_the_state(implementation: Implementation, dtype: torch.dtype, device: torch.device) -> None:
    """I - 2 k k^T is a Householder reflection: it keeps the norm."""
    signs = torch.randint(0, 2, (20, 16), generator=torch.Generator().manual_seed(1)) * 2 - 1
    call = undecayed(dtype, device, signs / 4, beta=2.0)
    call = call.having(v=torch.zeros_like(call.tokens["v"]))
    state = call.run(implementation)[1]
    assert_close(
        state.norm(dim=(2, 3)), call.options["initial_state"].norm(dim=(2, 3)), implementation.tolerance[dtype]
    )


@each(ALL)
def test_sequences_of_a_batch_equal_each_alone(
    implementation: Implementation, dtype: torch.dtype, device: torch.device
) -> None:
    cuts = [0, 7, 7, 8, 25]
    call = make_call(25, H=1, HV=2, N=4, dtype=dtype, device=device)
    o, states = call.using(cu_seqlens=torch.tensor(cuts, dtype=torch.int32, device=device)).run(implementation)
    for n, (first, end) in enumerate(pairwise(cuts)):
        alone = call.between(first, end).using(initial_state=call.options["initial_state"][n : n + 1])
        o_alone, state_alone = alone.run(implementation)
        assert_close(o[:, first:end], o_alone, implementation.tolerance[dtype])
        assert_close(states[n : n + 1], state_alone, implementation.tolerance[dtype])


@each([FUSED])
def test_permuted_slots_give_permuted_results(
    implementation: Implementation, dtype: torch.dtype, device: torch.device
) -> None:
    call = make_call(3, B=4, dtype=dtype, device=device)
    pool, order = call.options["initial_state"], torch.tensor([2, 0, 3, 1], device=device)
    o, states = call.using(initial_state=pool[order]).run(implementation)
    o_pool, states_pool = call.using(state_indices=order).run(implementation)
    assert torch.equal(o, o_pool)
    assert torch.equal(states, states_pool)


@each(KERNELS)
def test_slices_of_a_fused_buffer_equal_copies(
    implementation: Implementation, dtype: torch.dtype, device: torch.device
) -> None:
    call = make_call(9, B=2, H=2, dtype=dtype, device=device)
    o, state = call.run(implementation)
    fused = call.having(**{name: sliced(x, 32, 16) for name, x in call.tokens.items()})
    assert not fused.tokens["q"].is_contiguous()
    o_fused, state_fused = fused.run(implementation)
    assert torch.equal(o, o_fused)
    assert torch.equal(state, state_fused)


@each(KERNELS, FLOAT32)
@pytest.mark.parametrize("poison", [float("nan"), 1e30])
def test_poison_around_every_input_changes_nothing(
    implementation: Implementation, dtype: torch.dtype, device: torch.device, poison: float
) -> None:
    cuts = torch.tensor([0, 1, 1, 18], device=device)
    call = make_call(18, HV=2, K=12, V=20, N=3, raw=True, dtype=dtype, device=device).using(cu_seqlens=cuts)
    o, state = call.run(implementation)
    o_guarded, state_guarded = call.map(lambda x: guarded(x, poison)).run(implementation)
    assert torch.equal(o, o_guarded)
    assert torch.equal(state, state_guarded)


@each(KERNELS, FLOAT32, BFLOAT16)
@pytest.mark.parametrize(("K", "V"), [(12, 20), (16, 16)])
def test_only_the_outputs_are_written_and_all_of_them(
    implementation: Implementation,
    dtype: torch.dtype,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    K: int,
    V: int,
) -> None:
    cuts = torch.tensor([0, 1, 1, 18], device=device)
    call = make_call(18, K=K, V=V, N=3, dtype=dtype, device=device).using(cu_seqlens=cuts)
    o, state = call.run(implementation)
    memory = GuardedEmpty()
    monkeypatch.setattr(torch, "empty", memory)
    o_watched, state_watched = call.run(implementation)
    monkeypatch.undo()
    memory.assert_bands_are_whole()
    assert torch.equal(o, o_watched)
    assert torch.equal(state, state_watched)


@pytest.mark.parametrize("inplace", [False, True])
def test_poison_in_unused_slots_changes_nothing(device: torch.device, inplace: bool) -> None:
    call = make_call(2, B=3, device=device).using(inplace_final_state=inplace)
    pool = torch.full((7, *call.options["initial_state"].shape[1:]), float("nan"), device=device)
    slots = torch.tensor([5, 0, 3], device=device)
    pool[slots] = call.options["initial_state"]
    o, state = call.using(initial_state=call.options["initial_state"].clone()).run(FUSED)
    o_pool, state_pool = call.using(initial_state=pool, state_indices=slots).run(FUSED)
    assert torch.equal(o, o_pool)
    assert torch.equal(state, state_pool[slots] if inplace else state_pool)
    assert pool[[1, 2, 4, 6]].isnan().all()


def hadamard(size: int) -> torch.Tensor:
    """Orthonormal [size, size] with entries +-size^-0.5, exact for a power of four."""
    rows = torch.ones(1, 1)
    while len(rows) < size:
        rows = torch.cat([torch.cat([rows, rows], 1), torch.cat([rows, -rows], 1)])
    return rows / math.sqrt(size)


def test_the_oracle_computes_in_float64() -> None:
    o, state = make_call(3, dtype=FLOAT32).expected()
    assert o.dtype == state.dtype == FLOAT64
