"""`chunk_kda` beyond the properties shared by all implementations: its sizes, its gates, its cache of planned calls."""

import inspect
from itertools import pairwise

import pytest
import torch

from retinad.kernels.kda import chunk
from retinad.kernels.kda.chunk import chunk_kda

from ..guards import BFLOAT16, FLOAT16, FLOAT32, assert_close, guarded, sliced
from .oracle import Implementation, assert_matches, make_call

CHUNK = Implementation("chunk_kda", chunk_kda, {FLOAT32: 2e-5, BFLOAT16: 1e-2, FLOAT16: 2e-3})


@pytest.mark.parametrize(("K", "V"), [(16, 60), (60, 16), (100, 65), (1, 1), (130, 24)])
def test_widths_that_are_no_powers_of_two(device: torch.device, K: int, V: int) -> None:
    assert_matches(make_call(18, K=K, V=V, raw=True, device=device).map(guarded), CHUNK)


@pytest.mark.parametrize("T", [1, 15, 16, 17, 33, 49, 63, 64, 65, 129])
def test_lengths_around_sub_blocks_and_chunks(device: torch.device, T: int) -> None:
    assert_matches(make_call(T, raw=True, device=device).map(guarded), CHUNK)


@pytest.mark.parametrize("chunk_size", [16, 32, 64])
@pytest.mark.parametrize("gate", ["-5", "-20", "0", "mixed"])
def test_given_gates_at_every_chunk_size(device: torch.device, gate: str, chunk_size: int) -> None:
    """Pairs of tokens of all kinds occur: in one block of 16 tokens, and one, two and three blocks apart."""
    assert_matches(make_call(64, gate=gate, device=device).using(chunk_size=chunk_size), CHUNK)


@pytest.mark.parametrize("lower_bound", [None, -5.0, -0.01])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16, FLOAT16], ids=str)
def test_gates_in_the_kernel(device: torch.device, dtype: torch.dtype, lower_bound: float | None) -> None:
    call = make_call(40, H=1, HV=2, raw=True, dtype=dtype, device=device).using(lower_bound=lower_bound)
    if device.type == "cpu" and dtype == BFLOAT16:  # the interpreter truncates bfloat16
        _, state = call.run(CHUNK)
        assert_close(state, call.expected()[1], 2e-2)
    else:
        assert_matches(call, CHUNK)


def test_saturated_gate_in_the_kernel(device: torch.device) -> None:
    """All gates at -5, where exp(sum g) spans 35 decades in a block of 16."""
    call = make_call(64, raw=True, device=device).using(lower_bound=-5.0)
    assert_matches(call.having(g=torch.full_like(call.tokens["g"], 50.0)), CHUNK)


@pytest.mark.parametrize("steep", ["slices", "blocks", "none"])
def test_columns_that_need_halves_beside_ones_that_do_not(device: torch.device, steep: str) -> None:
    """For 16-bit inputs the kernel inspects each slice of 16 columns of each chunk."""
    call = make_call(130, K=64, V=24, dtype=BFLOAT16, device=device)
    g = torch.full_like(call.tokens["g"], -0.05)
    if steep == "slices":
        g[..., 20], g[..., 63] = -7.0, -30.0
    elif steep == "blocks":
        g[:, 70:73, :, 5] = -40.0
    call = call.having(g=g)
    for got, want in zip(call.run(CHUNK), call.expected(), strict=True):
        # The interpreter truncates bfloat16.
        assert_close(got, want, 2e-2 if device.type == "cpu" else 1e-2)


def test_minus_infinity_is_a_gate_that_forgets(device: torch.device) -> None:
    call = make_call(20, device=device)
    g = call.tokens["g"].clone()
    g[:, 7] = -torch.inf
    o, state = call.having(g=g).run(CHUNK)
    o_want, state_want = call.having(g=g.clamp(min=-200.0)).expected()
    assert_close(o, o_want, 2e-5)
    assert_close(state, state_want, 2e-5)


def test_nan_gates_stay_visible(device: torch.device) -> None:
    call = make_call(20, device=device)
    g = call.tokens["g"].clone()
    g[:, 7, :, 3] = torch.nan
    assert call.having(g=g).run(CHUNK)[1].isnan().any()


def test_identical_keys_do_not_blow_up_the_inverse(device: torch.device) -> None:
    """I + A is as far from normal as possible: powers of A reach 1e18, its inverse stays near 1."""
    call = make_call(64, gate="0", device=device)
    k = call.tokens["k"][:, :1].expand(-1, 64, -1, -1).contiguous()
    for beta in (1.0, 2.0):
        assert_matches(call.having(k=k, beta=torch.full_like(call.tokens["beta"], beta)), CHUNK)


def test_slices_of_a_fused_projection_are_read_in_place(device: torch.device) -> None:
    call = make_call(20, B=2, H=2, HV=2, raw=True, device=device)
    o, state = call.run(CHUNK)
    o_sliced, state_sliced = call.having(**{name: sliced(x, 8, 16) for name, x in call.tokens.items()}).run(CHUNK)
    assert torch.equal(o, o_sliced)
    assert torch.equal(state, state_sliced)


@pytest.mark.parametrize("split", [False, True])
def test_ragged_sequences_equal_each_alone(device: torch.device, split: bool) -> None:
    cuts = [0, 0, 5, 5, 38, 40]
    call = make_call(40, N=5, raw=True, device=device)
    options = {"cu_seqlens": torch.tensor(cuts, dtype=torch.int32, device=device), "chunk_size": 16, "split": split}
    o, state = call.using(**options).run(CHUNK)
    for n, (first, end) in enumerate(pairwise(cuts)):
        alone = call.between(first, end).using(initial_state=call.options["initial_state"][n : n + 1], chunk_size=16)
        o_alone, state_alone = alone.run(CHUNK)
        assert_close(o[:, first:end], o_alone, 1e-6)
        assert_close(state[n : n + 1], state_alone, 1e-6)


def test_no_final_state_unless_asked_for(device: torch.device) -> None:
    assert make_call(3, device=device).using(output_final_state=False).attend(CHUNK)[1] is None


def test_a_known_call_still_reads_its_values(device: torch.device) -> None:
    """The second call of a kind skips the planning, and must not use the tensors or lengths of the first call."""
    first, second = (make_call(20, N=2, device=device, seed=seed) for seed in (1, 2))
    for call, cut in ((first, 4), (second, 11)):
        cuts = torch.tensor([0, cut, 20], device=device)
        assert_matches(call.using(cu_seqlens=cuts), CHUNK)
        assert_matches(call.using(cu_seqlens=cuts, cu_seqlens_cpu=cuts.cpu()), CHUNK)
    for bad in ([0, 11, 19], [0, 21, 20]):
        cuts = torch.tensor(bad)
        with pytest.raises(ValueError, match="cu_seqlens"):
            second.using(cu_seqlens=cuts.to(device), cu_seqlens_cpu=cuts).run(CHUNK)


def test_the_cache_of_calls_is_bounded(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "MAX_CALLS", 2)
    for T in range(1, 6):
        make_call(T, device=device).run(CHUNK)
        assert len(chunk._calls) <= 2


def test_one_dtype_for_queries_keys_and_values(device: torch.device) -> None:
    call = make_call(3, device=device)
    with pytest.raises(ValueError, match=r"k, v: expected the dtype of q \(torch\.float32\), got"):
        call.having(v=call.tokens["v"].half()).run(CHUNK)


def test_without_triton_the_reference_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    call = make_call(20, raw=True)
    want = call.expected()
    monkeypatch.setattr(chunk, "runs_triton", lambda device: False)
    for got, wanted in zip(call.run(CHUNK), want, strict=True):
        assert_close(got, wanted, 1e-5)


def test_arguments_keep_the_order_of_the_public_kernels() -> None:
    names = list(inspect.signature(chunk_kda).parameters)
    assert names[:8] == ["q", "k", "v", "g", "beta", "scale", "initial_state", "output_final_state"]
    assert {"A_log", "dt_bias", "cu_seqlens", "cu_seqlens_cpu", "state_v_first", "safe_gate"} <= set(names)
