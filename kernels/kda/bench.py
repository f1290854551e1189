"""Times `chunk_kda` for the shapes that have a target time: `python -m retinad.kernels.kda.bench [--profile]`.

Each time is the median of several repeats of many calls with rotating inputs, measured with CUDA events and including
launches. The settings are those of the published figures of other public kernels: gate, norm and sigmoid in the kernel,
lower_bound -5, initial and final states, bf16.
"""

# torch.cuda.Event has no types.
# mypy: disable-error-code="no-untyped-call"

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from . import chunk_kda

# Copy bandwidth of one H200, reads plus writes. The floor of a row's time is the total size of its inputs and output,
# divided by this bandwidth.
MEMORY_BYTES_PER_S = 4.2e12
L2_BYTES = 60e6


@dataclass(frozen=True, slots=True)
class Row:
    """One shape and the target time of a call. `sequences` sequences of T // sequences tokens each lie end to end."""

    T: int
    H: int
    D: int
    sequences: int = 1
    target_ms: float = float("inf")

    def __str__(self) -> str:
        return f"{self.T}, {self.H}, {self.D} ({self.sequences})"

    @property
    def floor_ms(self) -> float:
        """Time in ms to read q, k, v and g once and to write o once."""
        return 5 * 2 * self.T * self.H * self.D / MEMORY_BYTES_PER_S * 1e3


TARGETS = (
    Row(1005, 16, 64, target_ms=0.10),
    Row(8040, 16, 64, 8, target_ms=0.20),
    Row(65536, 16, 64, target_ms=1.2),
    Row(131072, 8, 64, target_ms=1.2),
    Row(131072, 16, 64, target_ms=2.4),
    Row(65536, 16, 128, target_ms=2.4),
    Row(8192, 96, 128, target_ms=2.0),
)
SPLIT_LENGTHS = (4096, 8192, 16384, 65536)


def make_call(row: Row, seed: int, split: bool | None = None) -> Callable[[], tuple[torch.Tensor, torch.Tensor | None]]:
    """Make a function that calls `chunk_kda` with inputs of its own."""
    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(seed)
    N, T, H, D = row.sequences, row.T, row.H, row.D
    q, k, v, g = torch.randn(4, 1, T, H, D, device=device, dtype=torch.bfloat16, generator=generator).unbind()
    beta = torch.randn(1, T, H, device=device, dtype=torch.bfloat16, generator=generator)
    A_log = torch.zeros(H, device=device)
    dt_bias = torch.randn(H * D, device=device, generator=generator)
    state = torch.randn(N, H, D, D, device=device, generator=generator)
    cuts = torch.arange(N + 1, dtype=torch.int32) * (T // N) if N > 1 else None
    cuts_gpu = None if cuts is None else cuts.to(device)

    def call() -> tuple[torch.Tensor, torch.Tensor | None]:
        return chunk_kda(
            q, k, v, g, beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, safe_gate=True, lower_bound=-5.0,
            A_log=A_log, dt_bias=dt_bias, cu_seqlens=cuts_gpu, cu_seqlens_cpu=cuts, split=split,
        )  # fmt: skip

    return call


def call_time_ms(calls: Sequence[Callable[[], object]], count: int, repeats: int = 7) -> float:
    """Run `count` calls in rotation, and return the time per call in ms: the median of `repeats` repeats."""
    for call in calls:
        call()
    times: list[float] = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for i in range(count):
            calls[i % len(calls)]()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / count)
    return statistics.median(times)


def time_ms(row: Row, repeats: int = 7, split: bool | None = None) -> float:
    """Time of a call in ms. The inputs rotate, and together exceed the L2 cache."""
    sets = min(8, 2 + int(L2_BYTES / (5 * 2 * row.T * row.H * row.D)))
    calls = [make_call(row, seed, split) for seed in range(sets)]
    count = sets * max(1, int(0.02 / (sets * (50e-6 + row.floor_ms * 4e-3))))
    return call_time_ms(calls, count, repeats)


def profile(row: Row) -> str:
    """Time that each kernel of a call takes, in microseconds, as text."""
    call = make_call(row, 0)
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as measured:
        for _ in range(5):
            call()
        torch.cuda.synchronize()
    events = [e for e in measured.key_averages() if e.device_time_total > 0]
    return "  ".join(f"{e.key.split('(')[0][:24]} {e.device_time_total / e.count:.1f}" for e in events)


def main(arguments: list[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="also print the time of each kernel")
    options = parser.parse_args(arguments)
    say = sys.stdout.write
    say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    say("| T, H, D (sequences) | ms | target | floor |\n|---|---|---|---|\n")
    for row in TARGETS:
        measured = time_ms(row)
        say(f"| {row} | {measured:.3f} | {row.target_ms} | {row.floor_ms:.3f} |\n")
        sys.stdout.flush()
        if options.profile:
            say(f"{profile(row)}\n")
    say("| T (H 16, D 64) | split ms | whole ms | chosen ms |\n|---|---|---|---|\n")
    for T in SPLIT_LENGTHS:
        row = Row(T, 16, 64)
        split, whole, chosen = (time_ms(row, split=choice) for choice in (True, False, None))
        say(f"| {T} | {split:.3f} | {whole:.3f} | {chosen:.3f} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
