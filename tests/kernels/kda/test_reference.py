"""The definition itself, against numbers computed by hand, and its two forms against each other."""

import math

import pytest
import torch

from retinad.kernels.kda.reference import beta_reference, gate_reference, l2norm_reference

from ..guards import FLOAT32, FLOAT64, assert_close
from .oracle import CHUNKED, Attention, assert_matches, chunked, make_call, recurrence


def test_two_steps_by_hand() -> None:
    """K = 2, V = 1, q = (1, 1), scale 2. Step 1: decay halves S = (4, 8); k = (1, 0), v = 3, beta = 1 sets row 0 to 3.
    Step 2: no decay; k = (0, 1), v = 1, beta = 0.5 moves row 1 from 4 to 2.5."""
    one = torch.ones(1, 2, 1, 2, dtype=FLOAT64)
    o, state = recurrence(
        q=one,
        k=torch.eye(2, dtype=FLOAT64).view(1, 2, 1, 2),
        v=torch.tensor([3.0, 1.0], dtype=FLOAT64).view(1, 2, 1, 1),
        g=torch.tensor([[-math.log(2)] * 2, [0.0, 0.0]], dtype=FLOAT64).view(1, 2, 1, 2),
        beta=torch.tensor([1.0, 0.5], dtype=FLOAT64).view(1, 2, 1),
        scale=2.0,
        initial_state=torch.tensor([4.0, 8.0], dtype=FLOAT64).view(1, 1, 2, 1),
        output_final_state=True,
    )
    torch.testing.assert_close(o.flatten(), torch.tensor([14.0, 11.0], dtype=FLOAT64))
    assert state is not None
    torch.testing.assert_close(state.flatten(), torch.tensor([3.0, 2.5], dtype=FLOAT64))


@pytest.mark.parametrize("T", [0, 1, 15, 16, 17, 63, 64, 65, 127])
@pytest.mark.parametrize("chunk_size", [16, 32, 64])
def test_chunked_form_equals_the_recurrence_in_float64(T: int, chunk_size: int) -> None:
    call = make_call(T, H=2, HV=4, K=10, V=6, gate="mixed", dtype=FLOAT64).using(chunk_size=chunk_size)
    o, state = call.using(compute_dtype=FLOAT64).run(chunked)
    o_want, state_want = call.expected()
    assert_close(o, o_want, 1e-13)
    assert_close(state, state_want, 1e-13)


@pytest.mark.parametrize("gate", ["mild", "0", "-5", "-20", "mixed", "-20 on one channel"])
def test_chunked_form_in_float32(gate: str) -> None:
    assert_matches(make_call(200, H=3, K=20, V=12, gate=gate), CHUNKED)


@pytest.mark.parametrize("lower_bound", [None, -5.0, -0.5])
@pytest.mark.parametrize("parameters", [True, False])
def test_options_match_their_formulas(lower_bound: float | None, parameters: bool) -> None:
    call = make_call(20, H=1, HV=2, raw=True, dtype=FLOAT64).using(
        allow_neg_eigval=True, lower_bound=lower_bound, scale=0.3
    )
    if not parameters:
        call = call.using(A_log=None, dt_bias=None)
    g = call.tokens["g"] + (call.options["dt_bias"].double().view(2, 16) if parameters else 0)
    rate = (call.options["A_log"].double().exp() if parameters else torch.ones(2))[:, None]
    decay = -rate * (1 + g.exp()).log() if lower_bound is None else lower_bound / (1 + (-rate * g).exp())
    plain = make_call(20, H=1, HV=2, dtype=FLOAT64).using(initial_state=call.options["initial_state"], scale=0.3)
    plain = plain.having(
        q=call.tokens["q"] / (call.tokens["q"].square().sum(-1, keepdim=True) + 1e-6).sqrt(),
        k=call.tokens["k"] / (call.tokens["k"].square().sum(-1, keepdim=True) + 1e-6).sqrt(),
        v=call.tokens["v"],
        g=decay,
        beta=2 / (1 + (-call.tokens["beta"]).exp()),
    )
    for got, want in zip(call.run(recurrence), plain.run(recurrence), strict=True):
        assert_close(got, want, 1e-14)


def test_default_scale_is_one_over_root_k() -> None:
    call = make_call(5, K=9, dtype=FLOAT64)
    assert torch.equal(call.run(recurrence)[0], call.using(scale=9**-0.5).run(recurrence)[0])


@pytest.mark.parametrize("reference", [recurrence, chunked])
def test_v_first_state_is_the_transpose(reference: Attention) -> None:
    call = make_call(20, HV=2)
    o, state = call.run(reference)
    o_first, state_first = call.using(
        initial_state=call.options["initial_state"].mT.contiguous(), state_v_first=True
    ).run(reference)
    assert torch.equal(o, o_first)
    assert torch.equal(state.mT, state_first)


@pytest.mark.parametrize("reference", [recurrence, chunked])
def test_value_heads_read_their_group(reference: Attention) -> None:
    """Value head h reads query/key head h // (HV / H)."""
    call = make_call(9, H=2, HV=6)
    repeated = call.having(**{name: call.tokens[name].repeat_interleave(3, dim=2) for name in ("q", "k")})
    assert torch.equal(call.run(reference)[0], repeated.run(reference)[0])


@pytest.mark.parametrize("reference", [recurrence, chunked])
def test_many_sequences_with_empty_ones(reference: Attention) -> None:
    lengths = torch.randint(0, 3, (2100,), generator=torch.Generator().manual_seed(0))
    cuts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    call = make_call(int(cuts[-1]), K=4, V=6, N=2100).using(cu_seqlens=cuts)
    o, states = call.run(reference)
    empty = lengths == 0
    assert torch.equal(states[empty].float(), call.options["initial_state"][empty])
    last = call.between(int(cuts[-2]), int(cuts[-1])).using(
        cu_seqlens=None, initial_state=call.options["initial_state"][-1:]
    )
    assert torch.equal(o[:, cuts[-2] :], last.run(reference)[0])


@pytest.mark.parametrize("reference", [recurrence, chunked])
def test_nothing_is_mutated_or_shared(reference: Attention) -> None:
    call = make_call(0)
    kept = call.options["initial_state"].clone()
    _, state = call.using(compute_dtype=FLOAT32).run(reference)
    state.zero_()
    assert torch.equal(call.options["initial_state"], kept)


def test_no_final_state_unless_asked() -> None:
    assert make_call(3).using(output_final_state=False).attend(recurrence)[1] is None


def test_gates_stay_within_their_range() -> None:
    g = torch.tensor([-1e4, -90.0, -1.0, 0.0, 1.0, 90.0, 1e4], dtype=FLOAT32).view(7, 1, 1)
    assert torch.isfinite(gate_reference(g)).all()
    assert gate_reference(g)[0] == 0.0
    assert gate_reference(g)[-1] == -1e4
    bounded = gate_reference(g, lower_bound=-5.0)
    assert bounded.min() == -5.0
    assert bounded.max() == 0.0


def test_norm_and_beta() -> None:
    assert torch.equal(l2norm_reference(torch.zeros(3)), torch.zeros(3))
    assert beta_reference(torch.zeros(1), allow_neg_eigval=True) == 1.0
