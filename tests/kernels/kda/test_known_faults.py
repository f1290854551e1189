"""Regression tests for faults that public implementations of delta attention had.

Cutting a sequence into pieces and tuned configurations are also tested beside their code, loading of gate parameters
in the layer's tests, chunks shorter than the filter in the convolution's tests.
"""

import doctest
import importlib
import pkgutil
from typing import Any

import pytest
import torch

import retinad.kernels.kda
from retinad.kernels.kda import chunk_kda, fused_recurrent_kda
from retinad.kernels.kda.checks import check_inputs
from retinad.kernels.kda.conv import short_convolution

from ..guards import BFLOAT16, FLOAT32, assert_close, guarded, relative_error
from .oracle import (
    ALL,
    CHUNK,
    CHUNKED,
    FUSED,
    KERNELS,
    Implementation,
    assert_matches,
    each,
    grouped,
    make_call,
)


@each(ALL, FLOAT32)
def test_heads_and_sequences_use_their_own_gate(
    implementation: Implementation, dtype: torch.dtype, device: torch.device
) -> None:
    call = make_call(20, H=3, N=2, device=device).using(cu_seqlens=torch.tensor([0, 9, 20], device=device))
    g = torch.full_like(call.tokens["g"], -10.0)
    g[:, :9, 0] = 0.0
    g[:, 9:, 1] = 0.0
    call = call.having(g=g, v=call.tokens["v"][:, :, :1].expand(-1, -1, 3, -1).contiguous())
    assert_matches(call, implementation)
    states = call.run(implementation)[1]
    assert relative_error(states[0, 1], states[0, 0]) > 0.1
    assert relative_error(states[1, 0], states[0, 0]) > 0.1


@each([CHUNKED, CHUNK], FLOAT32)
@pytest.mark.parametrize("T", [16, 65])
def test_chunk_sizes_agree(implementation: Implementation, dtype: torch.dtype, device: torch.device, T: int) -> None:
    call = make_call(T, K=16, V=8, device=device)
    o, state = call.run(implementation)
    for chunk_size in (16, 32):
        o_other, state_other = call.using(chunk_size=chunk_size).run(implementation)
        assert_close(o_other, o, 1e-5)
        assert_close(state_other, state, 1e-5)


@each(KERNELS, BFLOAT16, FLOAT32)
@pytest.mark.parametrize("T", [1, 15, 16, 17, 63, 64, 65, 127])
def test_lengths_at_the_edges_of_blocks(
    implementation: Implementation, dtype: torch.dtype, device: torch.device, T: int
) -> None:
    if device.type == "cpu" and (T in (15, 63) or (dtype == BFLOAT16 and T > 17)):
        pytest.skip("kept short in the interpreter")
    assert_matches(make_call(T, K=12, V=8, dtype=dtype, device=device).map(guarded), implementation)


@pytest.mark.gpu
@each(KERNELS)
@pytest.mark.parametrize("T", [1000, 1005, 4021])
def test_long_odd_lengths(implementation: Implementation, dtype: torch.dtype, device: torch.device, T: int) -> None:
    assert_matches(make_call(T, H=2, K=60, V=100, dtype=dtype, device=device).map(guarded), implementation)


@pytest.mark.gpu
@pytest.mark.timeout(300)
@each(KERNELS, BFLOAT16)
def test_offsets_past_two_to_the_31(implementation: Implementation, dtype: torch.dtype, device: torch.device) -> None:
    """The last tokens of a call over 2^31 elements equal a short call from the state before them."""
    T, H, D, tail = 131_136, 128, 128, 64
    assert T * H * D > 2**31
    random = torch.Generator(device).manual_seed(0)
    shapes = {"q": (D,), "k": (D,), "v": (D,), "g": (D,), "beta": ()}
    tokens = {
        name: torch.randn((1, T, H, *shape), generator=random, device=device, dtype=dtype)
        for name, shape in shapes.items()
    }
    call = make_call(1, raw=True, device=device).using(initial_state=None, A_log=None, dt_bias=None, lower_bound=-1.0)
    call = call.having(**tokens)
    o = call.using(output_final_state=False).attend(implementation)[0][:, -tail:].clone()
    _, state = call.between(0, T - tail).run(implementation)
    o_tail, _ = call.between(T - tail, T).using(initial_state=state).run(FUSED)
    assert_close(o, o_tail, 2 * implementation.tolerance[dtype])


@each(ALL, FLOAT32)
@pytest.mark.parametrize("with_state", [True, False])
def test_empty_sequences_keep_their_state(
    implementation: Implementation, dtype: torch.dtype, device: torch.device, with_state: bool
) -> None:
    cuts = torch.tensor([0, 0, 5, 5, 23, 23], device=device)
    call = make_call(23, N=5, device=device, state=with_state).using(cu_seqlens=cuts)
    assert_matches(call, implementation)
    states = call.run(implementation)[1][[0, 2, 4]].float()
    kept = call.options["initial_state"][[0, 2, 4]] if with_state else torch.zeros_like(states)
    assert torch.equal(states, kept)


@each(ALL, FLOAT32)
def test_no_sequences_at_all(implementation: Implementation, dtype: torch.dtype, device: torch.device) -> None:
    call = make_call(0, N=0, device=device).using(cu_seqlens=torch.zeros(1, dtype=torch.int64, device=device))
    o, states = call.run(implementation)
    assert o.shape == (1, 0, 1, 24)
    assert states.shape == (0, 1, 16, 24)


@pytest.mark.parametrize(("K", "V"), [(16, 24), (24, 16)])
def test_pieces_of_a_sequence_are_exact_without_decay(device: torch.device, K: int, V: int) -> None:
    """Without decay a piece's map of the state must be exact."""
    call = make_call(70, K=K, V=V, gate="0", device=device).using(chunk_size=16)
    o, state = call.using(split=False).run(CHUNK)
    o_split, state_split = call.using(split=True).run(CHUNK)
    assert_close(o_split, o, 1e-5)
    assert_close(state_split, state, 1e-5)


@each(KERNELS, FLOAT32, BFLOAT16)
@pytest.mark.parametrize("gate", ["0", "-5", "-20", "mixed", "-20 on one channel"])
def test_any_gate_is_finite_and_right(
    implementation: Implementation, dtype: torch.dtype, device: torch.device, gate: str
) -> None:
    """exp(-sum g) overflows float32 after 17 tokens at -5."""
    T = 700 if device.type == "cuda" else 33
    assert_matches(make_call(T, gate=gate, dtype=dtype, device=device), implementation)


@pytest.mark.gpu
@pytest.mark.parametrize("gate", ["0", "-5", "-20", "mixed", "-20 on one channel"])
def test_any_gate_over_many_chunks(device: torch.device, gate: str) -> None:
    assert_matches(make_call(4096, gate=gate, H=2, K=64, V=100, device=device), CHUNK)


@each(KERNELS, FLOAT32)
@pytest.mark.parametrize("lower_bound", [-5.0, None])
def test_gate_without_parameters(
    implementation: Implementation, dtype: torch.dtype, device: torch.device, lower_bound: float | None
) -> None:
    """A_log = None is a rate of 1, dt_bias = None is 0; each may be given without the other."""
    call = make_call(9, H=1, HV=2, raw=True, device=device).using(lower_bound=lower_bound)
    for options in ({"A_log": None}, {"dt_bias": None}, {"A_log": None, "dt_bias": None}):
        assert_matches(call.using(**options), implementation)


def test_shapes_of_the_gate_parameters(device: torch.device) -> None:
    call = make_call(2, H=1, HV=2, raw=True, device=device)
    for attention in (chunk_kda, fused_recurrent_kda):
        with pytest.raises(ValueError, match=r"dt_bias: expected shape \[HV\*K\] = \[32\], got \[2\]"):
            call.using(dt_bias=torch.zeros(2, device=device)).run(attention)
        with pytest.raises(ValueError, match=r"A_log: expected shape \[HV\] = \[2\], got \[32\]"):
            call.using(A_log=torch.zeros(32, device=device)).run(attention)


@each(ALL, FLOAT32)
def test_state_layouts(implementation: Implementation, dtype: torch.dtype, device: torch.device) -> None:
    """K != V and an asymmetric state expose a transposed state."""
    call = make_call(18, K=32, V=16, device=device)
    o, state = call.run(implementation)
    turned = call.using(initial_state=call.options["initial_state"].mT.contiguous(), state_v_first=True)
    o_turned, state_turned = turned.run(implementation)
    assert_matches(call, implementation)
    assert_close(o_turned, o, implementation.tolerance[dtype])
    assert_close(state_turned.mT, state, implementation.tolerance[dtype])
    with pytest.raises(ValueError, match=r"initial_state: expected shape \[N, HV, V, K\] = \[1, 1, 16, 32\], got"):
        call.using(state_v_first=True).run(implementation)


@pytest.mark.gpu
@each(KERNELS, FLOAT32, BFLOAT16)
def test_frames_one_by_one_equal_one_call(
    implementation: Implementation, dtype: torch.dtype, device: torch.device
) -> None:
    frames, T = 4, 1005
    call = make_call(frames * T, H=2, K=64, V=100, raw=True, dtype=dtype, device=device)
    o, state = call.run(implementation)
    o_want, state_want = call.expected()
    parts, carried = [], call.options["initial_state"]
    for i in range(frames):
        part, carried = call.between(i * T, (i + 1) * T).using(initial_state=carried).run(implementation)
        parts.append(part)
    tolerance = 1e-5 if dtype == FLOAT32 else 2e-2
    assert_close(torch.cat(parts, 1), o, tolerance)
    assert_close(carried, state, tolerance)
    assert_close(torch.cat(parts, 1), o_want, implementation.tolerance[dtype])
    assert_close(carried, state_want, implementation.tolerance[dtype])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, in the interpreter
@each(ALL, FLOAT32)
def test_nan_stays_in_its_stream(implementation: Implementation, dtype: torch.dtype, device: torch.device) -> None:
    """A stream beside a poisoned one is unchanged, bit for bit."""
    cuts = torch.tensor([0, 9, 20], device=device)
    call = make_call(20, N=2, device=device).using(cu_seqlens=cuts)
    o, states = call.run(implementation)
    poisoned = call.map(torch.clone)
    poisoned.tokens["v"][:, 3] = float("nan")
    poisoned.options["initial_state"][0, 0, 0, 0] = float("inf")
    o_poisoned, states_poisoned = poisoned.run(implementation)
    assert not torch.isfinite(states_poisoned[0]).all()
    assert torch.equal(o_poisoned[:, 9:], o[:, 9:])
    assert torch.equal(states_poisoned[1], states[1])


def test_shuffled_slots(device: torch.device) -> None:
    random = torch.Generator().manual_seed(4)
    slots = torch.randperm(64, generator=random)[:32].to(device)
    slots[::5] = -1
    live = slots >= 0
    call = make_call(1, B=32, K=4, V=6, device=device)
    pool = torch.randn(64, 1, 4, 6, generator=random).to(device)
    kept = pool.clone()
    o_want, states_want = call.using(initial_state=pool[slots.clamp(min=0)]).run(FUSED)
    o, _ = call.using(initial_state=pool, state_indices=slots, inplace_final_state=True).run(FUSED)
    assert torch.equal(o[live], o_want[live])
    assert torch.equal(pool[slots[live]], states_want[live])
    untouched = torch.ones(64, dtype=torch.bool, device=device)
    untouched[slots[live]] = False
    assert torch.equal(pool[untouched], kept[untouched])


@each(KERNELS, FLOAT32)
def test_a_restored_snapshot_continues_bit_for_bit(
    implementation: Implementation, dtype: torch.dtype, device: torch.device
) -> None:
    call = make_call(12, device=device)
    _, snapshot = call.between(0, 7).run(implementation)
    rest = call.between(7, 12)
    first = rest.using(initial_state=snapshot.clone()).run(implementation)
    second = rest.using(initial_state=snapshot.clone()).run(implementation)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    import triton  # type: ignore[import-untyped,unused-ignore]  # no py.typed

    names: list[str] = []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_post_compile_hook", lambda *args, **kwargs: names.append(str(kwargs.get("repr")))
    )
    return names


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("varlen", [False, True])
def test_new_lengths_compile_nothing(device: torch.device, compilations: list[str], varlen: bool) -> None:
    longest = make_call(40_000, H=2, K=64, V=64, N=2 if varlen else 1, raw=True, dtype=BFLOAT16, device=device)
    x, weight = torch.zeros(1, 40_000, 192, device=device), torch.zeros(192, 1, 4, device=device)

    def run(T: int) -> None:
        call = longest.between(0, T)
        if varlen:
            call = call.using(cu_seqlens=torch.tensor([0, T // 3, T], device=device))
        for implementation in KERNELS:
            call.run(implementation)
        short_convolution(x[:, :T], weight, output_final_state=True)

    lengths = torch.randint(1, 40_000, (200,), generator=torch.Generator().manual_seed(5)).tolist()
    for T in (1, 2, 16, 17, 64, 100, 1005, 1008, 5000, 20_000, 39_999):
        run(T)
    compilations.clear()
    for T in lengths:
        run(T)
    assert compilations == []


@each(KERNELS, FLOAT32)
def test_all_options_left_out(implementation: Implementation, dtype: torch.dtype, device: torch.device) -> None:
    call = make_call(5, state=False, device=device)
    o, state = implementation.call(*call.tokens.values())
    assert state is None
    assert_close(o, call.expected()[0], implementation.tolerance[dtype])


@each(ALL, FLOAT32)
def test_cuts_that_do_not_fit_are_refused(
    implementation: Implementation, dtype: torch.dtype, device: torch.device
) -> None:
    call = make_call(6, N=2, device=device)
    for cuts, message in [
        ([0, 3, 5], "expected to end at T = 6, got 5"),
        ([0, 7, 6], "expected not to decrease, got 7 then 6"),
        ([1, 3, 6], "expected to start at 0, got 1"),
    ]:
        on_cpu = torch.tensor(cuts)
        with pytest.raises(ValueError, match="cu_seqlens.*: " + message):
            call.using(cu_seqlens=on_cpu.to(device), cu_seqlens_cpu=on_cpu).run(implementation)
    with pytest.raises(ValueError, match=r"cu_seqlens: expected int32 or int64, got torch\.float32"):
        call.using(cu_seqlens=torch.tensor([0.0, 6.0], device=device)).run(implementation)
    with pytest.raises(ValueError, match="cu_seqlens_cpu: expected None if cu_seqlens is None"):
        call.using(cu_seqlens_cpu=torch.tensor([0, 6])).run(implementation)
    batch = make_call(6, B=2, device=device)
    with pytest.raises(ValueError, match="cu_seqlens: expected B = 1"):
        batch.using(cu_seqlens=torch.tensor([0, 3, 6], device=device)).run(implementation)


@each(KERNELS, FLOAT32)
def test_results_of_two_calls_never_alias(
    implementation: Implementation, dtype: torch.dtype, device: torch.device
) -> None:
    call = make_call(5, device=device)
    o, state = call.run(implementation)
    kept = o.clone(), state.clone()
    other = call.having(v=-call.tokens["v"]).run(implementation)
    assert other[0].data_ptr() != o.data_ptr()
    assert other[1].data_ptr() not in (state.data_ptr(), call.options["initial_state"].data_ptr())
    assert torch.equal(o, kept[0])
    assert torch.equal(state, kept[1])


def test_documented_examples_run() -> None:
    modules = [retinad.kernels.kda.__name__]
    modules += [f"{modules[0]}.{m.name}" for m in pkgutil.iter_modules(retinad.kernels.kda.__path__)]
    results = [doctest.testmod(importlib.import_module(name)) for name in modules]
    assert sum(r.failed for r in results) == 0
    assert sum(r.attempted for r in results) > 0


def test_wrong_shapes_are_named() -> None:
    """Every refusal names the argument, the shape expected and the shape passed."""
    call = make_call(4, H=2, HV=4)
    x = call.tokens
    for changed, message in [
        ({"q": x["q"][0]}, r"q: expected shape \[B, T, H, K\], got \[4, 2, 16\]"),
        ({"k": x["k"][:, :3]}, r"k: expected shape \[B, T, H, K\] = \[1, 4, 2, 16\], got \[1, 3, 2, 16\]"),
        ({"v": x["v"][0]}, r"v: expected shape \[B, T, HV, V\], got \[4, 4, 24\]"),
        ({"v": x["v"][:, :, :3]}, "v: expected HV to be a positive multiple of H = 2, got HV = 3"),
        ({"v": x["v"][:, :3]}, r"v: expected shape \[B, T, HV, V\] = \[1, 4, 4, 24\], got \[1, 3, 4, 24\]"),
        ({"g": x["g"][:, :, :2]}, r"g: expected shape \[B, T, HV, K\] = \[1, 4, 4, 16\], got \[1, 4, 2, 16\]"),
        ({"beta": x["beta"][..., None]}, r"beta: expected shape \[B, T, HV\] = \[1, 4, 4\], got \[1, 4, 4, 1\]"),
        ({"q": x["q"].int()}, "q: expected one of .*, got torch.int32"),
        ({"beta": x["beta"].to("meta")}, r"beta: expected the device of the first argument \(cpu\), got meta"),
    ]:
        g = {"g": x["g"][:, :, :3], "beta": x["beta"][:, :, :3]} if "multiple" in message else {}
        with pytest.raises(ValueError, match=message):
            check_inputs(*grouped(x | changed | g))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"chunk_size": 48}, "chunk_size: expected 16, 32 or 64, got 48"),
        ({"lower_bound": -6.0, "use_gate_in_kernel": True}, r"lower_bound: expected a value in \[-5.0, 0\), got -6.0"),
        ({"lower_bound": 0.0, "use_gate_in_kernel": True}, "lower_bound"),
        ({"allow_neg_eigval": True}, "allow_neg_eigval=True needs use_beta_sigmoid_in_kernel=True"),
        (
            {"initial_state": torch.zeros(2, 4, 16, 24)},
            r"initial_state: expected shape \[N, HV, K, V\] = \[1, 4, 16, 24\]",
        ),
    ]
    for options, message in refused:
        with pytest.raises(ValueError, match=message):
            check_inputs(*grouped({**x, **options}))
    too_wide = make_call(1, K=257)
    with pytest.raises(ValueError, match="expected 1 <= K <= 256, got K = 257"):
        check_inputs(*grouped(too_wide.tokens))
