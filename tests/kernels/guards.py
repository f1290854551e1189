"""Guarded buffers and comparisons that the tests of all kernels share."""

import math
from collections.abc import Callable
from typing import Any

import torch

WithoutTriton = Callable[[Callable[..., object]], None]
"""The fixture `without_triton`: takes the wrapper whose module must not use Triton."""
BAND, MARK = 1024, 77.0  # elements on either side of a guarded tensor, and their value where writes are watched
FLOAT64, FLOAT32, BFLOAT16, FLOAT16 = torch.float64, torch.float32, torch.bfloat16, torch.float16


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Norm of the difference divided by the norm of `want`; not finite if `got` is not finite."""
    got, want = got.double().cpu(), want.double().cpu()
    assert got.shape == want.shape
    if want.numel() == 0:
        return 0.0
    return float((got - want).norm() / want.norm().clamp(min=1e-30))


def assert_close(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    error = relative_error(got, want)
    assert error <= tolerance, f"relative error {error:.2e} > {tolerance:.0e}"


def guarded(x: torch.Tensor, poison: float = float("nan")) -> torch.Tensor:
    """A copy of x inside a larger buffer whose rest is poisoned (with a large number if x holds integers)."""
    filler = poison if x.is_floating_point() else 1 << 20
    buffer = torch.full((x.numel() + 2 * BAND,), filler, dtype=x.dtype, device=x.device)
    inner = buffer[BAND : BAND + x.numel()].view(x.shape)
    return inner.copy_(x)


class GuardedEmpty:
    """A replacement for torch.empty: filled with NaN, which exposes what is never written, between marked bands."""

    def __init__(self) -> None:
        self._empty = torch.empty
        self._buffers: list[torch.Tensor] = []

    def __call__(self, *size: Any, dtype: torch.dtype = FLOAT32, device: Any = None) -> torch.Tensor:
        shape = tuple(size[0]) if isinstance(size[0], tuple | torch.Size) else size
        count = math.prod(shape)
        buffer = self._empty(count + 2 * BAND, dtype=dtype, device=device).fill_(MARK)
        self._buffers.append(buffer)
        inner = buffer[BAND : BAND + count]
        return (inner.fill_(float("nan")) if dtype.is_floating_point else inner).view(shape)

    def assert_bands_are_whole(self) -> None:
        assert self._buffers
        for buffer in self._buffers:
            assert (buffer[:BAND] == MARK).all()
            assert (buffer[-BAND:] == MARK).all()


def sliced(x: torch.Tensor, before: int, after: int, poison: float = float("nan")) -> torch.Tensor:
    """A copy of x [B, T, ...] as a slice of wider rows, like that of a fused projection; the rest is poisoned."""
    width = x[0, 0].numel() if x.numel() else 0
    rows = torch.full((*x.shape[:2], before + width + after), poison, dtype=x.dtype, device=x.device)
    middle = rows[..., before : before + width]
    middle.copy_(x.flatten(2))
    return middle if x.dim() == 3 else middle.view(x.shape)
