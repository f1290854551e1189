"""The chunked kernels on a CUDA device against the float64 recurrence: sizes, lengths, gates, dtypes and layouts.

`python -m pytest -m gpu -n 12 tests/kernels/kda` takes two or three minutes on one card, most of it compiling.
"""

from typing import Any

import pytest
import torch

from retinad.kernels.kda.chunk import chunk_kda

from ..guards import BFLOAT16, FLOAT16, FLOAT32, assert_close, guarded, relative_error, sliced
from .oracle import CHUNK, Call, Implementation, assert_matches, make_call

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

IN_PIECES = Implementation(
    "chunk_kda in pieces",
    lambda **arguments: chunk_kda(**arguments, split=True),
    {dtype: 2 * error for dtype, error in CHUNK.tolerance.items()},
)
GATES = ["-5", "-20", "0", "mixed", "softplus", "bounded"]
DTYPES = [FLOAT32, BFLOAT16, FLOAT16]


def gated(gate: str, T: int, **sizes: Any) -> Call:
    """A call whose decay comes from the gate in the kernel, or is given directly."""
    call = make_call(T, raw=gate in ("softplus", "bounded"), gate=gate, device="cuda", **sizes)
    call = call.using(lower_bound=-5.0) if gate == "bounded" else call
    return call.map(guarded)


@pytest.mark.parametrize("T", [0, 1, 15, 16, 17, 63, 64, 65, 127, 1000, 1005, 4021])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gate", ["softplus", "bounded"])
def test_lengths(T: int, dtype: torch.dtype, gate: str) -> None:
    assert_matches(gated(gate, T, H=3, K=64, V=100, dtype=dtype), CHUNK)


@pytest.mark.parametrize("V", [16, 60, 64, 100, 128])
@pytest.mark.parametrize("K", [16, 60, 64, 100, 128])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_widths(K: int, V: int, dtype: torch.dtype) -> None:
    for implementation in (CHUNK, IN_PIECES):
        assert_matches(gated("bounded", 333, K=K, V=V, dtype=dtype), implementation)


@pytest.mark.parametrize(("K", "V"), [(256, 256), (200, 130), (1, 1), (256, 3)])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_extreme_widths(K: int, V: int, dtype: torch.dtype) -> None:
    for implementation in (CHUNK, IN_PIECES):
        assert_matches(gated("softplus", 200, K=K, V=V, dtype=dtype), implementation)


@pytest.mark.parametrize(("H", "HV"), [(1, 1), (3, 3), (12, 12), (16, 16), (1, 2), (3, 6), (16, 32)])
def test_heads(H: int, HV: int) -> None:
    for implementation in (CHUNK, IN_PIECES):
        assert_matches(gated("bounded", 300, H=H, HV=HV, K=64, V=32, dtype=BFLOAT16), implementation)


@pytest.mark.parametrize("implementation", [CHUNK, IN_PIECES], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(("K", "V"), [(64, 64), (128, 60)])
def test_gates(K: int, V: int, gate: str, dtype: torch.dtype, implementation: Implementation) -> None:
    assert_matches(gated(gate, 1005, H=2, K=K, V=V, dtype=dtype), implementation)


@pytest.mark.parametrize(("K", "V"), [(16, 24), (64, 64), (128, 128)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(FLOAT32, 1e-5), (BFLOAT16, 1e-2), (FLOAT16, 3e-3)], ids=str)
def test_inverse_without_decay(K: int, V: int, dtype: torch.dtype, tolerance: float) -> None:
    """Overlapping keys without decay: losing a term of the inverse, as one compiler did, causes an error of 1e-2 at
    K = 64 and of 1e-1 at K = 16."""
    call = gated("0", 700, K=K, V=V, dtype=dtype)
    for got, want in zip(call.run(CHUNK), call.expected(), strict=True):
        assert_close(got, want, tolerance)


@pytest.mark.parametrize("chunk_size", [16, 32, 64])
@pytest.mark.parametrize("state_v_first", [False, True])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("implementation", [CHUNK, IN_PIECES], ids=str)
def test_chunk_sizes_and_state_layouts(
    implementation: Implementation, dtype: torch.dtype, state_v_first: bool, chunk_size: int
) -> None:
    for gate in ("softplus", "bounded"):
        call = gated(gate, 333, H=2, K=64, V=32, dtype=dtype).using(chunk_size=chunk_size)
        if state_v_first:
            call = call.using(initial_state=call.options["initial_state"].mT.contiguous(), state_v_first=True)
        assert_matches(call, implementation)


@pytest.mark.parametrize("implementation", [CHUNK, IN_PIECES], ids=str)
@pytest.mark.parametrize("lengths_known", [False, True])
@pytest.mark.parametrize(
    "cuts", [[0, 0, 5, 5, 69, 69], [0, 0, 1, 1000, 1000, 1064, 2069], [0, 3000, 3000, 3001]], ids=str
)
def test_ragged_sequences(cuts: list[int], lengths_known: bool, implementation: Implementation) -> None:
    call = gated("bounded", cuts[-1], H=2, N=len(cuts) - 1, K=64, V=32, dtype=BFLOAT16)
    call = call.using(cu_seqlens=torch.tensor(cuts, dtype=torch.int32, device="cuda"))
    if lengths_known:
        call = call.using(cu_seqlens_cpu=torch.tensor(cuts))
    assert_matches(call, implementation)


def test_many_sequences() -> None:
    lengths = torch.randint(0, 40, (2100,), generator=torch.Generator().manual_seed(0))
    cuts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    call = gated("bounded", int(cuts[-1]), N=2100, H=1, K=16, V=16).using(cu_seqlens=cuts.cuda())
    o, state = call.run(CHUNK)
    for n in [*range(20), *range(1000, 1020), *range(2080, 2100)]:
        first, end = int(cuts[n]), int(cuts[n + 1])
        alone = call.between(first, end).using(cu_seqlens=None, initial_state=call.options["initial_state"][n : n + 1])
        o_alone, state_alone = alone.run(CHUNK)
        assert torch.equal(o[:, first:end], o_alone)
        assert torch.equal(state[n : n + 1], state_alone)
        assert_matches(alone, CHUNK)


@pytest.mark.parametrize("T", [1005, 4021])
def test_slices_equal_copies_bit_for_bit(T: int) -> None:
    call = gated("bounded", T, H=4, K=64, V=128, dtype=BFLOAT16)
    o, state = call.run(CHUNK)
    o_sliced, state_sliced = call.having(**{name: sliced(x, 8, 16) for name, x in call.tokens.items()}).run(CHUNK)
    assert torch.equal(o, o_sliced)
    assert torch.equal(state, state_sliced)


@pytest.mark.parametrize("gate", ["0", "bounded"])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_32_pieces_at_most_double_the_error(gate: str, dtype: torch.dtype) -> None:
    call = gated(gate, 2048, H=2, K=64, V=64, dtype=dtype)
    wanted = call.expected()
    for whole, pieces, want in zip(call.run(CHUNK), call.run(IN_PIECES), wanted, strict=True):
        assert relative_error(pieces, want) <= 2 * max(relative_error(whole, want), 1e-6)


def test_200_random_lengths_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton  # type: ignore[import-untyped,unused-ignore]  # no py.typed

    call = gated("bounded", 70_000, H=16, K=64, V=64, dtype=BFLOAT16)
    for T in (1, 100, 70_000):
        for split in (True, False):
            call.between(0, T).using(split=split).run(CHUNK)
    compiled: list[str] = []
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda **event: compiled.append(str(event)))
    for T in torch.randint(0, 70_000, (200,), generator=torch.Generator().manual_seed(1)).tolist():
        call.between(0, T).run(CHUNK)
    assert compiled == []


def test_results_never_alias_and_nothing_is_mutated() -> None:
    call = gated("bounded", 200, K=64, V=64, dtype=BFLOAT16)
    before = {name: x.clone() for name, x in call.tokens.items()}
    state = call.options["initial_state"].clone()
    first, second = call.run(CHUNK), call.run(CHUNK)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
        assert a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()
    assert all(torch.equal(x, before[name]) for name, x in call.tokens.items())
    assert torch.equal(call.options["initial_state"], state)


def test_frames_one_by_one_equal_one_call() -> None:
    call = gated("bounded", 4 * 1005, H=2, K=64, V=64, dtype=BFLOAT16)
    o, state = call.run(CHUNK)
    parts, carried = [], call.options["initial_state"]
    for i in range(4):
        part, carried = call.between(i * 1005, i * 1005 + 1005).using(initial_state=carried).run(CHUNK)
        parts.append(part)
    assert_close(torch.cat(parts, 1), o, 1e-2)
    assert_close(carried, state, 1e-2)
