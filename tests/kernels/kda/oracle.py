"""Inputs, the float64 oracle and the list of implementations that the delta attention tests share."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from retinad.kernels.kda import chunk_kda, fused_recurrent_kda
from retinad.kernels.kda.options import KdaOptions, KdaTensors
from retinad.kernels.kda.reference import chunk_kda_reference, recurrent_kda_reference

from ..guards import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, assert_close

Attention = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


@dataclass(frozen=True)
class Implementation:
    """An implementation of delta attention, and its largest relative error by dtype of the inputs."""

    name: str
    call: Attention
    tolerance: dict[torch.dtype, float]

    def __str__(self) -> str:
        return self.name


def grouped(arguments: dict[str, Any]) -> tuple[KdaTensors, KdaOptions]:
    """Arguments of a public call, by name, grouped for the implementations below it."""
    tensors = {name: x for name, x in arguments.items() if name in KdaTensors._fields}
    options = {name: x for name, x in arguments.items() if name not in tensors}
    return KdaTensors(**tensors), KdaOptions(**options)


def recurrence(*, compute_dtype: torch.dtype = FLOAT64, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`recurrent_kda_reference` under the signature of the public calls."""
    return recurrent_kda_reference(*grouped(arguments), compute_dtype)


def chunked(*, compute_dtype: torch.dtype = FLOAT32, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`chunk_kda_reference` under the signature of the public calls."""
    return chunk_kda_reference(*grouped(arguments), compute_dtype)


RECURRENCE = Implementation("recurrence", recurrence, {FLOAT64: 1e-13, FLOAT32: 1e-6, BFLOAT16: 4e-3, FLOAT16: 1e-3})
CHUNKED = Implementation("chunked", chunked, {FLOAT32: 1e-5, BFLOAT16: 4e-3, FLOAT16: 1e-3})
FUSED = Implementation("fused_recurrent_kda", fused_recurrent_kda, {FLOAT32: 1e-5, BFLOAT16: 4e-3, FLOAT16: 1e-3})
# Dot products of bf16 and fp16 inputs are computed on rounded tiles, so errors are those of the public kernels.
CHUNK = Implementation("chunk_kda", chunk_kda, {FLOAT32: 1e-4, BFLOAT16: 1e-2, FLOAT16: 1e-2})
KERNELS = [FUSED, CHUNK]
ALL = [RECURRENCE, CHUNKED, *KERNELS]


def each(implementations: list[Implementation], *dtypes: torch.dtype) -> pytest.MarkDecorator:
    """Parametrise a test over implementations and, for each, the given dtypes that it supports (all by default).

    In the interpreter kernels run in float16 only where it is given: it is the same code as bfloat16.
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
    """Arguments of one call: tokens (q, k, v, g, beta) and other arguments, by name."""

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

    def attend(self, attention: Attention | Implementation) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Outputs, and the final states if the options ask for them."""
        attention = attention.call if isinstance(attention, Implementation) else attention
        return attention(**self.tokens, **{"output_final_state": True} | self.options)

    def run(self, attention: Attention | Implementation) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs and final states, of a call that asks for both."""
        o, state = self.attend(attention)
        assert state is not None
        return o, state

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Results of the float64 recurrence for the same values, computed on the CPU."""
        return self.map(lambda x: x.cpu().double() if x.is_floating_point() else x.cpu()).run(recurrence)


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
    """Random tokens, unit keys and a state; with `raw`, inputs for the gate, norm and sigmoid in the kernel."""
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


def assert_matches(call: Call, implementation: Implementation) -> None:
    """Compare outputs and final states with the float64 recurrence, to the tolerance of the inputs' dtype."""
    tolerance = implementation.tolerance[call.tokens["v"].dtype]
    (o, state), (o_want, state_want) = call.run(implementation), call.expected()
    assert o.dtype == call.tokens["v"].dtype
    assert_close(o, o_want, tolerance)
    assert_close(state, state_want, tolerance)
