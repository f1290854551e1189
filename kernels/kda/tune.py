"""Tunes and checks the table of this device: `python -m retinad.kernels.kda.tune [--check] [--write] [key ...]`.

Triton miscompiles some choices of warps and blocks on Hopper. So a configuration is timed only after its results agree
with the float64 recurrence, for whole sequences and for pieces, with bounded gates, unbounded gates and no gate. A key
of the table is "<bits of the inputs>-<padded key width>". Without --write, the new table is only printed.
"""

import argparse
import dataclasses
import json
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from .bench import call_time_ms
from .checks import check_inputs
from .chunk_triton import prepare
from .options import KdaOptions, KdaTensors
from .reference import recurrent_kda_reference
from .tuning import KdaConfig, Launch, kda_config

LARGEST_ERROR = {torch.bfloat16: 1e-2, torch.float16: 1e-2, torch.float32: 1e-4}
KEYS = ("16-64", "16-128", "32-64", "32-128")
# Changes to try, in order. Each is kept if it is correct and faster. There are few, because each takes seconds to
# compile.
CANDIDATES: tuple[dict[str, Any], ...] = (
    {"intra": Launch(4, 1)},
    {"intra": Launch(4, 1, 168)},
    {"scan": Launch(4, 2), "scan_block_v": 64},
    {"scan": Launch(4, 3), "scan_block_v": 64},
    {"scan": Launch(8, 3), "scan_block_v": 128},
    {"pieces": Launch(4, 2), "pieces_block_v": 32},
    {"pieces": Launch(4, 3), "pieces_block_v": 64},
    {"pieces": Launch(8, 3), "pieces_block_v": 128},
    {"maps": Launch(4, 2)},
    {"maps": Launch(4, 3)},
    {"chain": Launch(4, 3)},
    {"chain": Launch(8, 3)},
)


class Problem:
    """One set of inputs and options. The float64 results are computed on request."""

    def __init__(
        self, T: int, H: int, D: int, dtype: torch.dtype, lower_bound: float | None, use_gate: bool = True
    ) -> None:
        random = torch.Generator("cuda").manual_seed(T + H)
        q, k, v, g = torch.randn(4, 1, T, H, D, device="cuda", dtype=dtype, generator=random).unbind()
        beta = torch.randn(1, T, H, device="cuda", dtype=dtype, generator=random)
        A_log, bias = torch.zeros(H, device="cuda"), torch.randn(H * D, device="cuda", generator=random)
        state = torch.randn(1, H, D, D, device="cuda", generator=random)
        g = g if use_gate else torch.zeros_like(g)  # without decay, errors of the inverse have the largest effect
        self.tensors = KdaTensors(q, k, v, g, beta, A_log, bias, state)
        self.options = KdaOptions(
            output_final_state=True, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=use_gate,
            use_beta_sigmoid_in_kernel=True, lower_bound=lower_bound,
        )  # fmt: skip
        self.shape = check_inputs(self.tensors, self.options)

    def run(self, config: KdaConfig, split: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        options = self.options._replace(split=split)
        return prepare(self.shape, self.tensors, None, options, config)(self.tensors)

    def expected(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        return recurrent_kda_reference(self.tensors._replace(v=self.tensors.v.double()), self.options)


def error_of(config: KdaConfig, D: int, dtype: torch.dtype) -> float:
    """Largest relative error of outputs and states against the float64 recurrence; infinite if a kernel fails."""
    worst = 0.0
    # The two sizes (T, H) result in few programs and in many.
    gates, sizes = ((-5.0, True), (None, True), (None, False)), ((777, 2), (130, 160))
    for (lower_bound, use_gate), (T, H) in product(gates, sizes):
        problem = Problem(T, H, D, dtype, lower_bound, use_gate)
        expected = problem.expected()
        for split in (False, True):
            try:
                results = problem.run(config, split)
            except Exception as error:  # whatever the compiler raises, the configuration is rejected
                sys.stdout.write(f"  {type(error).__name__}: {str(error)[:100]}\n")
                return float("inf")
            for got, want in zip(results, expected, strict=True):
                assert got is not None
                assert want is not None
                relative = float((got.double() - want).norm() / want.norm())
                worst = max(worst, relative if relative == relative else float("inf"))  # NaN counts as wrong
    return worst


def time_of(config: KdaConfig, D: int, dtype: torch.dtype) -> float:
    """Sum of three times in ms: of a short call, of a long call without pieces, and of a long call in pieces."""
    short, long = Problem(1005, 16, D, dtype, -5.0), Problem(16384, 16, D, dtype, -5.0)
    calls = ((short, False), (long, False), (long, True))
    return sum(call_time_ms([partial(problem.run, config, split)], 20) for problem, split in calls)


def tune(key: str) -> KdaConfig:
    """The fastest correct configuration for `key`. Raises RuntimeError if the current one is incorrect."""
    bits, D = (int(part) for part in key.split("-"))
    dtype = torch.float32 if bits == 32 else torch.bfloat16
    best = kda_config(torch.cuda.get_device_capability(), bits, D)
    error = error_of(best, D, dtype)
    if error > LARGEST_ERROR[dtype]:
        raise RuntimeError(f"{key}: the current configuration has an error of {error:.1e}")
    best_ms = time_of(best, D, dtype)
    for change in CANDIDATES:
        config = dataclasses.replace(best, **change)
        error = error_of(config, D, dtype)
        right = error <= LARGEST_ERROR[dtype]
        ms = time_of(config, D, dtype) if right else float("inf")
        sys.stdout.write(f"{key} {change}: error {error:.1e}, {ms:.3f} ms against {best_ms:.3f}\n")
        if ms < 0.99 * best_ms:
            best, best_ms = config, ms
    return best


def check(key: str) -> None:
    """Print the error of the table's configuration. Raises RuntimeError if the error is too large."""
    bits, D = (int(part) for part in key.split("-"))
    dtype = torch.float32 if bits == 32 else torch.bfloat16
    error = error_of(kda_config(torch.cuda.get_device_capability(), bits, D), D, dtype)
    sys.stdout.write(f"{key}: error {error:.1e}, at most {LARGEST_ERROR[dtype]:.0e}\n")
    if error > LARGEST_ERROR[dtype]:
        raise RuntimeError(f"{key}: the table's configuration has an error of {error:.1e}")


def main(arguments: list[str] | None = None) -> None:
    """Check the table, or tune it and print or write the new table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("keys", nargs="*", default=KEYS)
    parser.add_argument("--check", action="store_true", help="only check the table against the reference")
    parser.add_argument("--write", action="store_true", help="replace the device's table")
    options = parser.parse_args(arguments)
    if options.check:
        for key in options.keys:
            check(key)
        return
    rows = ",\n".join(f'    "{key}": {json.dumps(tune(key).to_row())}' for key in options.keys)
    table = f'{{\n  "chunk_kda": {{\n{rows}\n  }}\n}}\n'
    major, minor = torch.cuda.get_device_capability()
    sys.stdout.write(table)
    if options.write:
        (Path(__file__).parent / "configs" / f"sm_{major}{minor}.json").write_text(table)


if __name__ == "__main__":
    main()
