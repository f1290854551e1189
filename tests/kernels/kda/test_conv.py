"""The short convolution against PyTorch's, and the state that a stream keeps between calls."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from retinad.kernels.kda import conv
from retinad.kernels.kda.conv import short_convolution, short_convolution_reference

from ..guards import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, GuardedEmpty, assert_close, guarded, sliced

TOLERANCE = {FLOAT32: 2e-6, BFLOAT16: 4e-3, FLOAT16: 1e-3}


def inputs(
    T: int,
    D: int = 24,
    B: int = 1,
    N: int | None = None,
    dtype: torch.dtype = FLOAT32,
    device: torch.device | str = "cpu",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(T)
    x = torch.randn(B, T, D, generator=random).to(device, dtype)
    weight = torch.randn(D, 1, 4, generator=random).to(device, dtype)
    return x, weight, torch.randn(N or B, 3, D, generator=random).to(device, dtype)


def convolve(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor | None, cu_seqlens: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and new states."""
    y, final = short_convolution(x, weight, initial_state=state, output_final_state=True, cu_seqlens=cu_seqlens)
    assert final is not None
    return y, final


def by_pytorch(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Outputs and new states, computed by a grouped convolution over the state and the inputs."""
    known = torch.cat([state, x], 1).double().mT
    return F.silu(F.conv1d(known, weight.double(), groups=x.shape[2])).mT


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("T", "D", "B"), [(1, 24, 2), (2, 300, 1), (3, 7, 2), (40, 130, 2)])
def test_equals_a_grouped_convolution(device: torch.device, dtype: torch.dtype, T: int, D: int, B: int) -> None:
    x, weight, state = inputs(T, D, B, dtype=dtype, device=device)
    y, final = convolve(x, weight, state)
    assert y.dtype == final.dtype == dtype
    assert_close(y, by_pytorch(x, weight, state), TOLERANCE[dtype])
    assert torch.equal(final, torch.cat([state, x], 1)[:, -3:])


def test_reference_equals_a_grouped_convolution_in_float64() -> None:
    x, weight, state = inputs(11, dtype=FLOAT64)
    y, final = short_convolution_reference(x, weight, initial_state=state, compute_dtype=FLOAT64)
    assert_close(y, by_pytorch(x, weight, state), 1e-15)
    assert torch.equal(final, x[:, -3:])


def test_a_stream_begins_with_zeros(device: torch.device) -> None:
    x, weight, state = inputs(5, device=device)
    fresh = convolve(x, weight, None)
    zeros = convolve(x, weight, torch.zeros_like(state))
    assert all(torch.equal(a, b) for a, b in zip(fresh, zeros, strict=True))


@pytest.mark.parametrize("cuts", [[0, *range(1, 10)], [0, 2, 2, 5, 9], [0, 1, 9], [0, 3, 6, 9]])
def test_chunks_shorter_than_the_filter(device: torch.device, cuts: list[int]) -> None:
    """One token at a time, or any other cut, equals all at once, bit for bit."""
    x, weight, state = inputs(9, device=device)
    y, final = convolve(x, weight, state)
    parts = []
    for first, end in pairwise(cuts):
        part, state = convolve(x[:, first:end], weight, state)
        parts.append(part)
    assert torch.equal(torch.cat(parts, 1), y)
    assert torch.equal(state, final)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_sequences_of_a_batch_equal_each_alone(device: torch.device, index: torch.dtype) -> None:
    cuts = [0, 0, 1, 3, 3, 20, 40, 40]
    x, weight, state = inputs(40, N=7, device=device)
    cu_seqlens = torch.tensor(cuts, dtype=index, device=device)
    y, final = convolve(x, weight, state, cu_seqlens)
    y_want, final_want = short_convolution_reference(x, weight, initial_state=state, cu_seqlens=cu_seqlens)
    assert_close(y, y_want, TOLERANCE[FLOAT32])
    assert torch.equal(final, final_want)
    for n, (first, end) in enumerate(pairwise(cuts)):
        alone = convolve(x[:, first:end], weight, state[n : n + 1])
        assert torch.equal(y[:, first:end], alone[0])
        assert torch.equal(final[n : n + 1], alone[1])


def test_slices_and_poison(device: torch.device) -> None:
    """A slice of a fused projection equals a copy, and memory around the tensors changes nothing."""
    x, weight, state = inputs(6, B=2, device=device)
    y, final = convolve(x, weight, state)
    y_sliced, final_sliced = convolve(sliced(x, 16, 8), guarded(weight), guarded(state))
    assert torch.equal(y, y_sliced)
    assert torch.equal(final, final_sliced)


def test_only_the_outputs_are_written_and_all_of_them(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, state = inputs(6, D=20, B=3, device=device)
    memory = GuardedEmpty()
    monkeypatch.setattr(torch, "empty", memory)
    y, final = convolve(x, weight, state)
    monkeypatch.undo()
    memory.assert_bands_are_whole()
    assert_close(y, by_pytorch(x, weight, state), TOLERANCE[FLOAT32])
    assert torch.equal(final, x[:, -3:])


@pytest.mark.parametrize("triton", [True, False])
def test_pool_in_place(device: torch.device, monkeypatch: pytest.MonkeyPatch, triton: bool) -> None:
    """Slots are read and shifted in place, even by chunks shorter than the state; padding changes nothing."""
    if not triton:
        monkeypatch.setattr(conv, "runs_triton", lambda device: False)
    x, weight, _ = inputs(2, B=3, device=device)
    wide = torch.randn(5, 2, 3, 24, generator=torch.Generator().manual_seed(2)).to(device)
    pool, kept = wide[:, 0], wide[:, 0].clone()
    slots = torch.tensor([4, -1, 2], device=device)
    y, states = short_convolution(x, weight, initial_state=pool, state_indices=slots, inplace_final_state=True)
    assert states is pool
    assert_close(y[[0, 2]], by_pytorch(x[[0, 2]], weight, kept[[4, 2]]), TOLERANCE[FLOAT32])
    assert (y[1] == 0).all()
    assert torch.equal(pool[[4, 2]], torch.cat([kept[[4, 2], 2:], x[[0, 2]]], 1))
    assert torch.equal(pool[[0, 1, 3]], kept[[0, 1, 3]])


@pytest.mark.parametrize("triton", [True, False])
def test_pool_read_only_and_moved(device: torch.device, monkeypatch: pytest.MonkeyPatch, triton: bool) -> None:
    if not triton:
        monkeypatch.setattr(conv, "runs_triton", lambda device: False)
    x, weight, pool = inputs(2, B=2, N=4, device=device)
    kept = pool.clone()
    slots = torch.tensor([1, 3], device=device)
    y, states = short_convolution(x, weight, initial_state=pool, state_indices=slots)
    assert states is None
    assert torch.equal(pool, kept)
    y_moved, _ = short_convolution(
        x, weight, initial_state=pool, state_indices=slots, inplace_final_state=True,
        final_state_indices=torch.tensor([0, -1], device=device),
    )  # fmt: skip
    assert torch.equal(y, y_moved)
    assert torch.equal(pool[0], torch.cat([kept[1, 2:], x[0]]))
    assert torch.equal(pool[1:], kept[1:])


def test_wrong_arguments_are_refused() -> None:
    x, weight, state = inputs(4)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: short_convolution(x[0], weight), r"x: expected a floating tensor of shape \[B, T, D\]"),
        (
            lambda: short_convolution(x, weight[:, 0]),
            r"weight: expected shape \[D, 1, 4\] = \[24, 1, 4\], got \[24, 4\]",
        ),
        (lambda: short_convolution(x, weight, initial_state=state.mT), r"initial_state: expected shape \[1, 3, 24\]"),
        (lambda: short_convolution(x, weight, inplace_final_state=True), "needs initial_state"),
        (lambda: short_convolution(x, weight, state_indices=torch.zeros(1, dtype=torch.int64)), "expected a pool"),
        (lambda: short_convolution(x, weight, cu_seqlens=torch.tensor([0, 3])), "cu_seqlens: expected to end at T = 4"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()
