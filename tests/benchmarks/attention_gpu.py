"""What attention to a stream's memory costs on a GPU, and how exact it is: FlashInfer's kernels against dense.

`python tests/benchmarks/attention_gpu.py` prints the table of docs/attention.md. A call is one layer of one step: the
released model makes 24 of them a frame. Each is timed by device events, 30 times after 5 to warm up, median. A stream's
memory (0.3 GB a layer at 1005 tokens) is larger than the GPU's cache. Errors are norms against float32 of the same
inputs.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from retinad.pipeline.cache.dense import DenseBackend, attend_all, seen
from retinad.pipeline.cache.flashinfer import open_flashinfer
from retinad.pipeline.cache.ledger import Layout, Ledger
from retinad.pipeline.cache.mixed import MixedBackend
from retinad.pipeline.cache.page_table import Sight, sights_of
from retinad.pipeline.cache.pool import Pool, PoolShape
from retinad.pipeline.cache.state import StreamState
from retinad.pipeline.cache.step import Backend, Step
from retinad.pipeline.config import StreamConfig

SHAPE = PoolShape(1, 16, 64, torch.bfloat16, torch.device("cuda:0"))
SPECIAL = 6
CALLS, WARM_UP = 30, 5


@dataclass(frozen=True)
class Case:
    """Streams of one age, each with one frame in the step."""

    name: str
    streams: int
    frame_tokens: int
    stream: StreamConfig
    committed: int


CASES = (
    Case("999 + 6, no history", 1, 1005, StreamConfig(history_frames=0), 72),
    *(Case("999 + 6", streams, 1005, StreamConfig(), 2000) for streams in (1, 2, 4, 8)),
    *(Case("777 + 6", streams, 783, StreamConfig(), 2000) for streams in (1, 4)),
    *(Case("256 + 6", streams, 262, StreamConfig(), 2000) for streams in (1, 2, 4, 8)),
    *(Case("112 + 6", streams, 118, StreamConfig(), 2000) for streams in (1, 8)),
    Case("999 + 6, first 8 frames", 1, 1005, StreamConfig(), 0),
)


def memories(case: Case) -> list[StreamState]:
    """Streams with random tokens, as old as the case says."""
    layout = Layout.of(case.stream, case.frame_tokens, SPECIAL)
    ledger = Ledger(layout)
    if case.committed:
        pinned = layout.pinned
        ledger = Ledger(layout, committed=case.committed, pinned=pinned, later=case.committed - pinned)
    pool = Pool(SHAPE)
    states = [StreamState.allocate(pool, ledger) for _ in range(case.streams)]
    pool.layer(0).normal_()
    return states


def milliseconds(call: Callable[[], object]) -> float:
    """Median time of a call on the device."""
    times = []
    for number in range(WARM_UP + CALLS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        if number >= WARM_UP:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def planning_ms(states: list[StreamState], frames: list[int], backend: Backend) -> float:
    """Median time on the host of making a step: its plan, its tables, their way to the device."""
    times = []
    for _ in range(WARM_UP + CALLS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        Step(states, frames, backend)
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times[WARM_UP:])


def error(out: Tensor, query: Tensor, pool: Pool, sights: list[Sight]) -> float:
    """Largest error of a stream's output."""
    rows, worst = [sight.rows for sight in sights], 0.0
    for sight, part, actual in zip(sights, query.split(rows), out.split(rows), strict=True):
        keys, values = seen(pool.layer(0), sight).float().unbind(0)
        expected = attend_all(part.float(), keys, values)
        worst = max(worst, float((actual.float() - expected).norm() / expected.norm()))
    return worst


def measure(case: Case, name: str, backend: Backend) -> str:
    """A row of the table."""
    states = memories(case)
    frames = [1 if case.committed else case.stream.scale_frames] * case.streams
    step = Step(states, frames, backend)
    shape = (sum(frames), case.frame_tokens, SHAPE.heads, SHAPE.head_dim)
    query = 2 * torch.randn(shape, device="cuda").to(SHAPE.dtype)
    sights = [part for state, plan in zip(states, step.plans, strict=True) for part in sights_of(state.span, plan)]
    wrong = error(step.attend(0, query).flatten(0, 1), query.flatten(0, 1), states[0].pool, sights)
    took_ms = milliseconds(lambda: step.attend(0, query))
    seen = sum(sight.tokens for sight in sights)
    tera = sum(4 * s.rows * s.tokens for s in sights) * SHAPE.heads * SHAPE.head_dim / took_ms / 1e9
    return (
        f"| {case.name} | {case.streams} | {seen // case.streams} | {name} | {took_ms:.3f} | {tera:.0f} | "
        f"{planning_ms(states, frames, backend):.2f} | {wrong:.1e} |"
    )


def kernels_of(case: Case, backend: Backend) -> list[str]:
    """Names of the kernels that a call runs."""
    states = memories(case)
    step = Step(states, [1] * case.streams, backend)
    query = torch.randn((case.streams, case.frame_tokens, 16, 64), device="cuda").to(SHAPE.dtype)
    step.attend(0, query)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step.attend(0, query)
    return [event.name[:60] for event in seen.events()]


@torch.inference_mode()
def main() -> None:
    device = torch.cuda.get_device_properties(0)
    kernels = ("fa2", "fa3") if device.major == 9 else ("fa2",)
    backends: dict[str, Backend] = {"dense": DenseBackend()}
    backends |= {f"flashinfer {name}": open_flashinfer(SHAPE, name) for name in kernels}
    backends |= {"auto": MixedBackend(backends[f"flashinfer {kernels[-1]}"], device.multi_processor_count)}
    print(f"{device.name}, PyTorch {torch.__version__}, bfloat16, 16 heads of 64 channels")
    print("| tokens of a frame | streams | tokens seen | backend | ms a call | TFLOP/s | plan ms a step | error |")
    print("| --- | --: | --: | --- | --: | --: | --: | --: |")
    for case in CASES:
        for name, backend in backends.items():
            print(measure(case, name, backend), flush=True)
    print("dense is", ", ".join(kernels_of(CASES[1], backends["dense"])))


if __name__ == "__main__":
    main()
