"""The fused residual sum and norm equal PyTorch's addcmul and LayerNorm, and write only their rows."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from retinad.kernels.fused import add, add_norm, norm

from ..guards import BFLOAT16, FLOAT16, FLOAT32, WithoutTriton, assert_close, guarded
from .tolerances import ONE_SUM, TOLERANCE

EPS = 1e-5
DTYPES = [BFLOAT16, FLOAT16, FLOAT32]


@dataclass(frozen=True)
class Case:
    x: Tensor
    branch: Tensor
    gamma: Tensor
    weight: Tensor
    bias: Tensor

    @property
    def summed(self) -> Tensor:
        return self.x.double() + self.gamma.double() * self.branch.double()

    def normed(self, x: Tensor, eps: float = EPS) -> Tensor:
        return functional.layer_norm(x.double(), x.shape[-1:], self.weight.double(), self.bias.double(), eps)


def make(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Case:
    """A residual stream whose mean is far from 0, as in a real network; every tensor is surrounded by NaN."""
    random = torch.Generator().manual_seed(sum(shape))
    C = shape[-1]

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=random)

    tensors = (3 * normal(*shape) + 2, normal(*shape).to(dtype), normal(C), normal(C), normal(C))
    return Case(*(guarded(tensor.to(device)) for tensor in tensors))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 384), (5, 768), (3, 1024), (2, 2048), (13, 256), (7, 100), (2, 3, 384)], ids=str)
def test_equals_sum_and_norm_in_float64(device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    case = make(shape, dtype, device)
    summed, out = case.summed, guarded(torch.full(shape, float("nan"), dtype=dtype, device=device))
    add_norm(case.x, case.branch, case.gamma, case.weight, case.bias, out, EPS)
    assert_close(case.x, summed, ONE_SUM)
    assert_close(out, case.normed(case.x), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_half_alone(device: torch.device, dtype: torch.dtype) -> None:
    case = make((9, 384), dtype, device)
    whole, out = case.x.clone(), torch.empty(9, 384, dtype=dtype, device=device)
    add_norm(whole, case.branch, case.gamma, case.weight, case.bias, out, EPS)
    kept, alone = case.x.clone(), torch.empty_like(out)
    norm(case.x, case.weight, case.bias, alone, EPS)
    assert torch.equal(case.x, kept)
    assert_close(alone, case.normed(kept), TOLERANCE[dtype])
    add(case.x, case.branch, case.gamma)
    assert torch.equal(case.x, whole)
    norm(case.x, case.weight, case.bias, alone, EPS)
    assert torch.equal(alone, out)


def test_free_frame_stride(device: torch.device) -> None:
    """Patch tokens without the special ones are normed into a wider buffer whose other rows are unchanged."""
    case = make((2, 9, 256), FLOAT32, device)
    wide, marks = case.x[:, 5:], torch.full((2, 10, 256), -1.0, device=device)
    norm(wide, case.weight, case.bias, marks[:, 6:], EPS)
    assert_close(marks[:, 6:], case.normed(case.x[:, 5:]), TOLERANCE[FLOAT32])
    assert (marks[:, :6] == -1).all()
    before, summed = case.x[:, :5].clone(), case.x[:, 5:].double() + case.gamma.double()
    add(wide, torch.ones(2, 4, 256, device=device), case.gamma)
    assert torch.equal(case.x[:, :5], before)
    assert_close(case.x[:, 5:], summed, ONE_SUM)


def test_epsilon_is_added_to_the_variance(device: torch.device) -> None:
    case = make((4, 256), FLOAT32, device)
    out = torch.empty_like(case.x)
    norm(case.x, case.weight, case.bias, out, 7.0)
    assert_close(out, case.normed(case.x, 7.0), TOLERANCE[FLOAT32])


def test_a_row_of_nan_spoils_no_other(device: torch.device) -> None:
    case = make((6, 256), FLOAT32, device)
    case.x[2] = float("nan")
    out = torch.empty_like(case.x)
    add_norm(case.x, case.branch, case.gamma, case.weight, case.bias, out, EPS)
    assert out.isfinite().all(1).tolist() == [True, True, False, True, True, True]


def test_pytorch_does_the_same(device: torch.device, without_triton: WithoutTriton) -> None:
    """Where Triton cannot run, the reference accepts the same calls, with the same strides."""
    case = make((2, 5, 384), BFLOAT16, device)
    kept, out, out_want = case.x.clone(), *torch.zeros(2, 2, 7, 384, dtype=BFLOAT16, device=device)
    add_norm(case.x, case.branch, case.gamma, case.weight, case.bias, out[:, 2:], EPS)
    without_triton(add_norm)
    add_norm(kept, case.branch, case.gamma, case.weight, case.bias, out_want[:, 2:], EPS)
    assert_close(case.x, kept, ONE_SUM)
    assert_close(out, out_want, 1.1 * TOLERANCE[BFLOAT16])  # the reference rounds


def test_wrong_arguments_are_refused(device: torch.device) -> None:
    case = make((4, 256), BFLOAT16, device)
    out = torch.empty_like(case.branch)
    refused: list[tuple[Callable[[], object], str]] = [
        (
            lambda: norm(case.x[:0], case.weight, case.bias, out[:0], EPS),
            r"x: expected a non-empty tensor \[0, 256\]",
        ),
        (lambda: norm(case.branch, case.weight, case.bias, out, EPS), "x: expected torch.float32, got torch.bfloat16"),
        (lambda: norm(case.x[0], case.weight, case.bias, out[0], EPS), r"x: expected \[N, C\] or \[F, P, C\]"),
        (lambda: norm(case.x.T, case.weight, case.bias, out, EPS), "x: expected dense rows of 4, got strides"),
        (lambda: norm(case.x, case.weight[1:], case.bias, out, EPS), r"weight: expected a non-empty tensor \[256\]"),
        (lambda: norm(case.x, case.weight, case.bias, out[1:], EPS), r"out: expected a non-empty tensor \[4, 256\]"),
        (lambda: add(case.x, case.branch.long(), case.gamma), "branch: expected torch.bfloat16 or"),
        (lambda: add(case.x, case.branch, case.gamma.half()), "gamma: expected torch.float32"),
        (lambda: add(case.x, case.branch.to("meta"), case.gamma), "branch: expected a tensor on"),
        (lambda: add(case.x[:2], case.branch[::2], case.gamma), "branch: expected a contiguous tensor"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.gpu
@pytest.mark.parametrize("C", [256, 384, 768, 1024, 2048])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_full_size(device: torch.device, C: int, dtype: torch.dtype) -> None:
    case = make((3, 1005, C), dtype, device)
    summed, out = case.summed, torch.full_like(case.branch, float("nan"))
    add_norm(case.x, case.branch, case.gamma, case.weight, case.bias, out, EPS)
    assert_close(case.x, summed, ONE_SUM)
    assert_close(out, case.normed(case.x), TOLERANCE[dtype])
