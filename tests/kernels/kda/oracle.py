"""Inputs, poisoned memory, the float64 oracle and the list of implementations that the delta attention tests share."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from retinad.kernels.kda.recurrent import fused_recurrent_kda
from retinad.kernels.kda.reference import chunk_kda_reference, recurrent_kda_reference

try:
    from retinad.kernels.kda.chunk import chunk_kda
except ModuleNotFoundError:
    chunk_kda = None

Attention = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]

BAND, MARK = 1024, 77.0  # elements on either side of a guarded tensor, and what they hold where writes are watched
FLOAT64, FLOAT32, BFLOAT16, FLOAT16 = torch.float64, torch.float32, torch.bfloat16, torch.float16


@dataclass(frozen=True)
class Implementation:
    """One way to compute delta attention, and its largest relative error by dtype of the inputs."""

    name: str
    call: Attention
    tolerance: dict[torch.dtype, float]

    def __str__(self) -> str:
        return self.name


RECURRENCE = Implementation(
    "recurrence",
    recurrent_kda_reference,
    {FLOAT64: 1e-13, FLOAT32: 1e-6, BFLOAT16: 4e-3, FLOAT16: 1e-3},
)
CHUNKED = Implementation("chunked", chunk_kda_reference, {FLOAT32: 1e-5, BFLOAT16: 4e-3, FLOAT16: 1e-3})
FUSED = Implementation("fused_recurrent_kda", fused_recurrent_kda, {FLOAT32: 1e-5, BFLOAT16: 4e-3, FLOAT16: 1e-3})
# Dot products of bf16 and fp16 inputs are computed on rounded tiles: the public kernels' order of error.
KERNELS = [FUSED]
if chunk_kda is not None:
    KERNELS.append(Implementation("chunk_kda", chunk_kda, {FLOAT32: 1e-4, BFLOAT16: 1e-2, FLOAT16: 1e-2}))
ALL = [RECURRENCE, CHUNKED, *KERNELS]


def each(implementations: list[Implementation], *dtypes: torch.dtype) -> pytest.MarkDecorator:
    """Parametrise a test over implementations and the dtypes (those named, or all that it has) that each supports.

    In the interpreter a kernel's float16 runs only where it is named: it is the same code as bfloat16.
    """
    cases = [(i, d) for i in implementations for d in (dtypes or everyday_dtypes(i)) if d in i.tolerance]
    return pytest.mark.parametrize(
        ("implementation", "dtype"), cases, ids=[f"{i}-{str(d).removeprefix('torch.')}" for i, d in cases]
    )


def everyday_dtypes(implementation: Implementation) -> list[torch.dtype]:
    skipped = {FLOAT16} if implementation in KERNELS and not torch.cuda.is_available() else set()
    return [d for d in implementation.tolerance if d not in skipped]


@dataclass(frozen=True)
class Call:
    """Arguments of one call: tokens (q, k, v, g, beta by name) and options."""

    tokens: dict[str, torch.Tensor]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_row(self) -> int:
        return self.tokens["q"].shape[1]

    def using(self, **options: Any) -> "Call":
        return replace(self, options=self.options | options)

    def having(self, **tokens: torch.Tensor) -> "Call":
        return replace(self, tokens=self.tokens | tokens)

    def between(self, first: int, end: int) -> "Call":
        return replace(self, tokens={name: x[:, first:end] for name, x in self.tokens.items()})

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Call":
        options = {name: change(x) if isinstance(x, torch.Tensor) else x for name, x in self.options.items()}
        return Call({name: change(x) for name, x in self.tokens.items()}, options)

    def run(self, attention: Attention | Implementation) -> tuple[torch.Tensor, torch.Tensor]:
        attention = attention.call if isinstance(attention, Implementation) else attention
        o, state = attention(**self.tokens, **{"output_final_state": True} | self.options)
        return o, state

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The float64 recurrence over the same values, on the CPU."""
        return self.map(lambda x: x.cpu().double() if x.is_floating_point() else x.cpu()).run(recurrent_kda_reference)


def make_call(
    T: int,
    *,
    B: int = 1,
    H: int = 1,
    HV: int | None = None,
    K: int = 16,
    V: int = 24,
    N: int | None = None,
    gate: str = "mild",
    raw: bool = False,
    state: bool = True,
    dtype: torch.dtype = FLOAT32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Call:
    """Random tokens, unit keys and a state; with `raw`, what the gate, norm and sigmoid in the kernel are to turn."""
    HV = HV or H
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    q, k = normal(B, T, H, K), normal(B, T, H, K)
    tokens = {"q": q, "k": k, "v": normal(B, T, HV, V), "g": normal(B, T, HV, K), "beta": normal(B, T, HV)}
    if not raw:
        tokens["k"] = torch.nn.functional.normalize(k, dim=-1)
        tokens["g"] = make_gate(gate, (B, T, HV, K), random)
        tokens["beta"] = torch.sigmoid(tokens["beta"])
    tokens = {name: x.to(device, dtype) for name, x in tokens.items()}
    options: dict[str, Any] = {}
    if state:
        options["initial_state"] = normal(B if N is None else N, HV, K, V).to(
            device, FLOAT64 if dtype == FLOAT64 else FLOAT32
        )
    if raw:
        options |= {"use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
        options |= {"A_log": normal(HV).to(device), "dt_bias": normal(HV * K).to(device)}
    return Call(tokens, options)


def make_gate(kind: str, shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    """Log decays: mild, constants named by their value, or -20 and 0 mixed within 16 tokens."""
    if kind == "mild":
        return torch.nn.functional.logsigmoid(torch.randn(shape, generator=random) + 2)
    if kind == "mixed":
        return torch.where(torch.rand(shape, generator=random) < 0.3, -20.0, 0.0)
    if kind == "-20 on one channel":
        g = torch.zeros(shape)
        g[..., 0] = -20.0
        return g
    return torch.full(shape, float(kind))


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is expected; not finite if `got` is not."""
    got, want = got.double().cpu(), want.double().cpu()
    assert got.shape == want.shape
    if want.numel() == 0:
        return 0.0
    return float((got - want).norm() / want.norm().clamp(min=1e-30))


def assert_close(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    error = relative_error(got, want)
    assert error <= tolerance, f"relative error {error:.2e} > {tolerance:.0e}"


def assert_matches(call: Call, implementation: Implementation) -> None:
    """Outputs and final states agree with the float64 recurrence, to the tolerance of the inputs' dtype."""
    tolerance = implementation.tolerance[call.tokens["v"].dtype]
    (o, state), (o_want, state_want) = call.run(implementation), call.expected()
    assert o.dtype == call.tokens["v"].dtype
    assert_close(o, o_want, tolerance)
    assert_close(state, state_want, tolerance)


def guarded(x: torch.Tensor, poison: float = float("nan")) -> torch.Tensor:
    """A copy of x inside a larger buffer whose rest is poisoned (a large count where x holds integers)."""
    filler = poison if x.is_floating_point() else 1 << 20
    buffer = torch.full((x.numel() + 2 * BAND,), filler, dtype=x.dtype, device=x.device)
    inner = buffer[BAND : BAND + x.numel()].view(x.shape)
    return inner.copy_(x)


class GuardedEmpty:
    """Stands in for torch.empty: NaN inside, so that what is never written shows, and marked bands around."""

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
    """A copy of x [B, T, ...] as a slice of a wider row, as a fused projection gives it; the rest is poisoned."""
    width = x[0, 0].numel() if x.numel() else 0
    rows = torch.full((*x.shape[:2], before + width + after), poison, dtype=x.dtype, device=x.device)
    rows[..., before : before + width] = x.flatten(2)
    return (
        rows[..., before : before + width].unflatten(-1, x.shape[2:])
        if x.dim() > 3
        else rows[..., before : before + width]
    )
