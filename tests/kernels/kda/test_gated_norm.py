"""The gated norm after delta attention equals the formula in float64, on slices and for every width and dtype."""

import pytest
import torch
import torch.nn.functional as F

from retinad.kernels.kda import gated_norm
from retinad.kernels.kda.gated_norm import gated_rms_norm

from ..guards import BFLOAT16, FLOAT16, FLOAT32, GuardedEmpty, assert_close, guarded, sliced

EPS = 1e-5
TOLERANCE = {FLOAT32: 1e-6, BFLOAT16: 8e-3, FLOAT16: 1e-3}
"""Sums are float32; results are rounded once, to within 2^-9 and 2^-12, twice that in the interpreter."""

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def inputs(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Inputs:
    random = torch.Generator().manual_seed(sum(shape))
    x, gate = torch.randn(2, *shape, generator=random).to(device, dtype).unbind()
    weight, bias = torch.randn(shape[3], generator=random), torch.randn(shape[2] * shape[3], generator=random)
    return x, gate, weight.to(device), bias.to(device, dtype)


def expected(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    gate = gate.double() if bias is None else gate.double() + bias.double().view(x.shape[2:])
    return F.rms_norm(x.double(), weight.shape, weight.double(), EPS) * gate.sigmoid()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1, 70, 2, 64), (2, 3, 3, 6), (1, 1, 1, 1), (3, 5, 1, 100)], ids=str)
@pytest.mark.parametrize("triton", [True, False])
def test_equals_the_formula(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, triton: bool, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    if not triton:
        monkeypatch.setattr(gated_norm, "runs_triton", lambda device: False)
    x, gate, weight, bias = inputs(shape, dtype, device)
    for added in (bias, None):
        y = gated_rms_norm(x, gate, weight, EPS, added)
        assert y.dtype == dtype
        assert_close(y, expected(x, gate, weight, added), TOLERANCE[dtype])


def test_slices_and_poison(device: torch.device) -> None:
    x, gate, weight, bias = inputs((2, 5, 3, 8), FLOAT32, device)
    y = gated_rms_norm(x, gate, weight, EPS, bias)
    again = gated_rms_norm(sliced(x, 8, 4), sliced(gate, 4, 8), guarded(weight), EPS, guarded(bias))
    assert torch.equal(y, again)


def test_only_the_output_is_written_and_all_of_it(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x, gate, weight, bias = inputs((1, 67, 2, 60), FLOAT32, device)
    memory = GuardedEmpty()
    monkeypatch.setattr(torch, "empty", memory)
    y = gated_rms_norm(x, gate, weight, EPS, bias)
    monkeypatch.undo()
    memory.assert_bands_are_whole()
    assert_close(y, expected(x, gate, weight, bias), TOLERANCE[FLOAT32])


def test_no_tokens(device: torch.device) -> None:
    x, gate, weight, bias = inputs((1, 0, 2, 8), FLOAT32, device)
    assert gated_rms_norm(x, gate, weight, EPS, bias).shape == (1, 0, 2, 8)


def test_wrong_arguments_are_refused() -> None:
    x, gate, weight, bias = inputs((1, 3, 2, 8), FLOAT32, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"x: expected shape \[B, T, HV, V\], got \[3, 2, 8\]"):
        gated_rms_norm(x[0], gate, weight, EPS)
    with pytest.raises(ValueError, match=r"gate: expected shape \[1, 3, 2, 8\], got \[1, 2, 2, 8\]"):
        gated_rms_norm(x, gate[:, 1:], weight, EPS)
    with pytest.raises(ValueError, match=r"weight: expected shape \[8\]"):
        gated_rms_norm(x, gate, weight[1:], EPS)
    with pytest.raises(ValueError, match=r"bias: expected shape \[16\]"):
        gated_rms_norm(x, gate, weight, EPS, bias[1:])
    with pytest.raises(ValueError, match="gate: expected one of"):
        gated_rms_norm(x, gate.double(), weight, EPS)
