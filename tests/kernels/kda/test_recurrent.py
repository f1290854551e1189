"""The fused recurrent kernel against the float64 recurrence, and what it does to a pool of states."""

from pathlib import Path

import pytest
import torch

from retinad.kernels.kda import recurrent
from retinad.kernels.kda.recurrent import fused_recurrent_kda

from ..compiling import run_program
from ..guards import BFLOAT16, FLOAT16, FLOAT32, assert_close
from .oracle import FUSED, Call, Implementation, assert_matches, each, make_call

SIZES = [(16, 60), (60, 16), (64, 100), (100, 64), (128, 16), (16, 128), (256, 24), (1, 1)]


@pytest.mark.parametrize(("K", "V"), SIZES)
def test_any_width(device: torch.device, K: int, V: int) -> None:
    assert_matches(make_call(3, K=K, V=V, raw=True, device=device), FUSED)


@each([FUSED], FLOAT32, BFLOAT16, FLOAT16)
@pytest.mark.parametrize("T", [0, 1, 2, 17])
def test_any_length(implementation: Implementation, dtype: torch.dtype, device: torch.device, T: int) -> None:
    assert_matches(make_call(T, raw=True, dtype=dtype, device=device), implementation)


@pytest.mark.parametrize(("H", "HV"), [(1, 1), (3, 3), (2, 4), (12, 12), (16, 32)])
def test_any_heads(device: torch.device, H: int, HV: int) -> None:
    assert_matches(make_call(2, H=H, HV=HV, V=8, device=device), FUSED)


def test_any_batch(device: torch.device) -> None:
    assert_matches(make_call(3, B=3, HV=2, device=device), FUSED)


@pytest.mark.parametrize("lower_bound", [None, -5.0])
@pytest.mark.parametrize("state_v_first", [False, True])
def test_options(device: torch.device, lower_bound: float | None, state_v_first: bool) -> None:
    call = make_call(4, H=1, HV=2, raw=True, device=device).using(
        lower_bound=lower_bound, allow_neg_eigval=True, scale=0.5, state_v_first=state_v_first
    )
    if state_v_first:
        call = call.using(initial_state=call.options["initial_state"].mT.contiguous())
    assert_matches(call, FUSED)


@pytest.mark.parametrize("gate", ["0", "-5", "-20", "mixed", "-20 on one channel"])
def test_any_gate(device: torch.device, gate: str) -> None:
    assert_matches(make_call(18, gate=gate, device=device), FUSED)


def test_mixed_dtypes(device: torch.device) -> None:
    """The gate and beta may stay in float32 beside bf16 tokens."""
    call = make_call(5, raw=True, device=device)
    assert_matches(call.having(**{name: call.tokens[name].bfloat16() for name in "qkv"}), FUSED)


def test_strided_arguments_that_are_not_slices(device: torch.device) -> None:
    """Heads-first storage and a state given as a transpose are copied, not misread."""
    call = make_call(4, B=2, H=2, HV=2, device=device)
    o, state = call.run(FUSED)
    turned = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in call.tokens.items()}
    turned_state = call.options["initial_state"].mT.contiguous().mT
    o_turned, state_turned = call.having(**turned).using(initial_state=turned_state).run(FUSED)
    assert torch.equal(o, o_turned)
    assert torch.equal(state, state_turned)


def pooled(device: torch.device) -> Call:
    """Four sequences (one empty) over a pool of six slots, in rows that are not next to each other."""
    call = make_call(6, H=1, HV=2, N=4, device=device)
    wide = torch.randn(6, 2, *call.options["initial_state"].shape[1:], generator=torch.Generator().manual_seed(3))
    return call.using(
        initial_state=wide.to(device)[:, 1],
        state_indices=torch.tensor([4, -1, 0, 2], dtype=torch.int32, device=device),
        cu_seqlens=torch.tensor([0, 2, 4, 4, 6], device=device),
    )


def without_pool(call: Call) -> Call:
    slots = call.options["state_indices"].long()
    return call.using(
        initial_state=call.options["initial_state"][slots.clamp(min=0)],
        state_indices=None,
        final_state_indices=None,
        inplace_final_state=False,
    )


def test_reading_a_pool_leaves_it_alone(device: torch.device) -> None:
    """A frame that is not a keyframe only reads the pool: no state is written anywhere."""
    call = pooled(device).using(output_final_state=False)
    kept = call.options["initial_state"].clone()
    o, state = call.attend(FUSED)
    o_want, _ = without_pool(call).attend(FUSED)
    assert state is None
    assert torch.equal(call.options["initial_state"], kept)
    assert torch.equal(o[:, :2], o_want[:, :2])
    assert torch.equal(o[:, 4:], o_want[:, 4:])
    assert (o[:, 2:4] == 0).all()


def test_out_of_place_returns_one_state_per_sequence(device: torch.device) -> None:
    call = pooled(device)
    kept = call.options["initial_state"].clone()
    _, states = call.run(FUSED)
    _, states_want = without_pool(call).run(FUSED)
    assert torch.equal(call.options["initial_state"], kept)
    assert torch.equal(states[[0, 2, 3]], states_want[[0, 2, 3]])
    assert torch.equal(states[2], kept[0])
    assert (states[1] == 0).all()


def test_in_place_writes_the_slots_it_read(device: torch.device) -> None:
    call = pooled(device).using(inplace_final_state=True)
    pool, kept = call.options["initial_state"], call.options["initial_state"].clone()
    _, states_want = without_pool(call).run(FUSED)
    _, states = call.run(FUSED)
    assert states is pool
    assert torch.equal(pool[[4, 2]], states_want[[0, 3]])
    assert torch.equal(pool[[0, 1, 3, 5]], kept[[0, 1, 3, 5]])


def test_writes_go_to_the_given_rows_or_nowhere(device: torch.device) -> None:
    """Keyframes and other frames share one launch, and a state may be written to another slot."""
    call = pooled(device).using(
        inplace_final_state=True, final_state_indices=torch.tensor([1, 3, -1, -1], dtype=torch.int32, device=device)
    )
    pool, kept = call.options["initial_state"], call.options["initial_state"].clone()
    _, states_want = without_pool(call).run(FUSED)
    call.run(FUSED)
    assert torch.equal(pool[1], states_want[0])
    assert torch.equal(pool[[0, 2, 3, 4, 5]], kept[[0, 2, 3, 4, 5]])


@pytest.mark.parametrize(("inplace", "moved"), [(False, False), (True, False), (True, True)])
def test_pytorch_does_the_same(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, inplace: bool, moved: bool
) -> None:
    """Where Triton cannot run, the reference accepts the same calls, also with pools."""
    call = pooled(device).using(inplace_final_state=inplace)
    if moved:
        call = call.using(final_state_indices=torch.tensor([1, 3, -1, 2], device=device))
    other = call.using(initial_state=call.options["initial_state"].clone())
    o, states = call.run(FUSED)
    monkeypatch.setattr(recurrent, "runs_triton", lambda device: False)
    o_want, states_want = other.run(FUSED)
    assert_close(o, o_want, FUSED.tolerance[FLOAT32])
    assert_close(states, states_want, FUSED.tolerance[FLOAT32])


def test_wrong_writing_is_refused(device: torch.device) -> None:
    call = pooled(device).using(inplace_final_state=True)
    pool = call.options["initial_state"]
    for options, message in [
        ({"initial_state": None, "state_indices": None}, "needs initial_state"),
        ({"initial_state": pool.half()}, "expected torch.float32, got torch.float16"),
        ({"initial_state": pool.mT.contiguous().mT}, "dense rows"),
        ({"initial_state": None}, r"initial_state: expected a pool \[slots, HV, K, V\]"),
        ({"state_indices": torch.zeros(3, dtype=torch.int64, device=device)}, r"state_indices: expected shape \[N\]"),
        ({"state_indices": torch.zeros(4, device=device)}, "state_indices: expected int32 or int64"),
        ({"final_state_indices": torch.zeros(3, dtype=torch.int64, device=device)}, "final_state_indices: expected"),
        ({"final_state_indices": call.options["state_indices"], "inplace_final_state": False}, "inplace_final_state"),
    ]:
        with pytest.raises(ValueError, match=message):
            call.using(**options).run(FUSED)


def test_slots_outside_the_pool_are_refused_on_the_cpu() -> None:
    call = pooled(torch.device("cpu"))
    with pytest.raises(ValueError, match="state_indices: expected values from -1 to 5"):
        call.using(state_indices=torch.tensor([0, 1, 2, 6])).run(FUSED)


def test_no_final_state_unless_asked(device: torch.device) -> None:
    assert make_call(1, device=device).using(output_final_state=False).attend(FUSED)[1] is None


@pytest.mark.timeout(300)  # 7 s of compiling on an idle machine
def test_compiles_for_hopper_without_spilling(tmp_path: Path) -> None:
    """In a separate process, because the interpreter replaces the compiler; no device is needed."""
    lines = run_program(["-m", "tests.kernels.kda.compile_ahead"], tmp_path)
    assert len(lines) > 10
    for line in lines:
        assert "STACK:0" in line, line
        assert "LOCAL:0" in line, line


@pytest.mark.gpu
@each([FUSED])
@pytest.mark.parametrize(("K", "V"), [(16, 16), (60, 100), (64, 64), (100, 60), (128, 128), (256, 256)])
def test_every_width_at_full_length(
    implementation: Implementation, dtype: torch.dtype, device: torch.device, K: int, V: int
) -> None:
    """A miscompiled shape yields wrong numbers, not an error."""
    for state_v_first in (False, True):
        call = make_call(64, B=3, H=2, HV=4, K=K, V=V, raw=True, dtype=dtype, device=device).using(lower_bound=-5.0)
        if state_v_first:
            call = call.using(initial_state=call.options["initial_state"].mT.contiguous(), state_v_first=True)
        assert_matches(call, implementation)


@pytest.mark.gpu
def test_many_sequences(device: torch.device) -> None:
    lengths = torch.randint(0, 3, (2100,), generator=torch.Generator().manual_seed(0))
    cuts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(device)
    assert_matches(make_call(int(cuts[-1]), H=2, N=2100, device=device).using(cu_seqlens=cuts), FUSED)


@pytest.mark.gpu
def test_grid_past_65535_programs(device: torch.device) -> None:
    call = make_call(1, B=5000, H=16, K=8, V=8, dtype=BFLOAT16, device=device)
    assert_close(call.run(FUSED)[1], call.expected()[1], FUSED.tolerance[FLOAT32])


def test_signature_is_flas() -> None:
    """Positional callers of fla.ops.kda.fused_recurrent_kda keep working."""
    names = fused_recurrent_kda.__code__.co_varnames[: fused_recurrent_kda.__code__.co_argcount]
    assert names == (
        "q", "k", "v", "g", "beta", "A_log", "dt_bias", "scale", "initial_state", "output_final_state",
        "use_qk_l2norm_in_kernel", "use_gate_in_kernel", "use_beta_sigmoid_in_kernel", "allow_neg_eigval",
        "lower_bound", "state_v_first", "cu_seqlens",
    )  # fmt: skip
