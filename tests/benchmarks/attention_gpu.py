"""What attention to a stream's memory costs on a GPU, and how exact it is: FlashInfer's kernels against dense.

`python tests/benchmarks/attention_gpu.py` prints the tables of docs/attention.md, with `ranges` the second alone, which
needs no FlashInfer: the project's own kernel over ranges that are read on the device. A call is one layer of one step:
the released model makes 24 of them a frame. Each is timed by device events, 30 times after 5 to warm up, median. A
stream's memory (0.3 GB a layer at 1005 tokens) is larger than the GPU's cache. Errors are norms against float32 of the
same inputs.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from retinad.kernels.attention import attend_ranges
from retinad.kernels.attention.reference import attend_ranges_reference
from retinad.pipeline.cache.attention_backend import AttentionBackend
from retinad.pipeline.cache.backends.dense import DenseBackend, attend_all, gather
from retinad.pipeline.cache.backends.flashinfer import open_flashinfer
from retinad.pipeline.cache.backends.triton import TritonBackend
from retinad.pipeline.cache.kv_pool import KVCachePool, PoolShape
from retinad.pipeline.cache.page_table import VisibleRanges, visible_ranges
from retinad.pipeline.cache.step import Step
from retinad.pipeline.cache.stream_cache import StreamState
from retinad.pipeline.cache.window import CacheLayout, StreamWindow
from retinad.pipeline.config import FlashInferKernels, StreamConfig

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


def caches(case: Case) -> list[StreamState]:
    """Streams with random tokens and the age of the case."""
    layout = CacheLayout.of(case.stream, case.frame_tokens, SPECIAL)
    window = StreamWindow(layout)
    if case.committed:
        pinned = layout.pinned_pages
        window = StreamWindow(layout, committed=case.committed, pinned=pinned, later=case.committed - pinned)
    pool = KVCachePool(SHAPE)
    states = [StreamState.allocate(pool, window) for _ in range(case.streams)]
    pool.layer(0).normal_()
    return states


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def milliseconds(call: Callable[[], object], calls: int = CALLS) -> float:
    """Median time of a call on the device."""
    times = list[float]()
    for number in range(WARM_UP + calls):
        begin, end = event(), event()
        begin.record()
        call()
        end.record()
        end.synchronize()
        if number >= WARM_UP:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def planning_ms(states: list[StreamState], frames: list[int], backend: AttentionBackend) -> float:
    """Median time on the host of creating a step: plan, tables, and their copy to the device."""
    times = []
    for _ in range(WARM_UP + CALLS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        Step(states, frames, backend)
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times[WARM_UP:])


def error(out: Tensor, query: Tensor, pool: KVCachePool, visible: list[VisibleRanges]) -> float:
    """Largest error of a stream's output."""
    rows, worst = [group.rows for group in visible], 0.0
    for group, part, actual in zip(visible, query.split_with_sizes(rows), out.split_with_sizes(rows), strict=True):
        keys, values = gather(pool.layer(0), group).float().unbind(0)
        expected = attend_all(part.float(), keys, values)
        worst = max(worst, float((actual.float() - expected).norm() / expected.norm()))
    return worst


def measure(case: Case, name: str, backend: AttentionBackend) -> str:
    """A row of the table."""
    states = caches(case)
    frames = [1 if case.committed else case.stream.scale_frames] * case.streams
    step = Step(states, frames, backend)
    shape = (sum(frames), case.frame_tokens, SHAPE.heads, SHAPE.head_dim)
    query = 2 * torch.randn(shape, device="cuda").to(SHAPE.dtype)
    pairs = zip(states, step.plans, strict=True)
    visible = [group for state, plan in pairs for group in visible_ranges(state.span, plan)]
    wrong = error(step.attend(0, query).flatten(0, 1), query.flatten(0, 1), states[0].pool, visible)
    took_ms = milliseconds(lambda: step.attend(0, query))
    seen = sum(group.tokens for group in visible)
    tera = sum(4 * s.rows * s.tokens for s in visible) * SHAPE.heads * SHAPE.head_dim / took_ms / 1e9
    return (
        f"| {case.name} | {case.streams} | {seen // case.streams} | {name} | {took_ms:.3f} | {tera:.0f} | "
        f"{planning_ms(states, frames, backend):.2f} | {wrong:.1e} |"
    )


def kernels_of(case: Case, backend: AttentionBackend) -> list[str]:
    """Names of the kernels that a call runs."""
    states = caches(case)
    step = Step(states, [1] * case.streams, backend)
    query = torch.randn((case.streams, case.frame_tokens, 16, 64), device="cuda").to(SHAPE.dtype)
    step.attend(0, query)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        step.attend(0, query)
    return [event.name[:60] for event in seen.events()]


@dataclass(frozen=True)
class RangeCase:
    """Frames of a step, each with ranges (first slot, number of slots) of one cache; frame s starts s * shift later."""

    name: str
    frames: int
    frame_tokens: int
    ranges: tuple[tuple[int, int], ...]
    shift: int = 0
    head_dim: int = 64
    dtype: torch.dtype = torch.bfloat16
    memory: torch.dtype | None = None

    @property
    def slots(self) -> Tensor:
        """[frames, ranges, 2] on the device."""
        rows = [
            [(n + s * self.shift, n + s * self.shift + count) for n, count in self.ranges] for s in range(self.frames)
        ]
        return torch.tensor(rows, device="cuda", dtype=torch.int32)


RUN = ((3, 8040), (9001, 55275), (300_000, 1206))
"""A frame in a run: scale frames, its own window, part of the history."""

RANGE_CASES = (
    *(RangeCase("999 + 6, no history", frames, 1005, ((3, 72360),), 72360) for frames in (1, 4, 8)),
    *(RangeCase("999 + 6", frames, 1005, ((3, 78504),), 78504) for frames in (1, 4)),
    *(RangeCase("a run, three ranges", frames, 1005, RUN, 1005) for frames in (8, 32)),
    RangeCase("777 + 6", 1, 783, ((3, 62520),)),
    *(RangeCase("256 + 6", frames, 262, ((3, 25008),), 25008) for frames in (1, 8)),
    RangeCase("112 + 6", 1, 118, ((3, 14640),)),
    RangeCase("float16", 1, 1005, ((3, 72360),), dtype=torch.float16),
    RangeCase("heads of 128", 1, 1005, ((3, 72360),), head_dim=128),
    RangeCase("memory in float8", 1, 1005, ((3, 72360),), memory=torch.float8_e4m3fn),
)


def replay_ms(call: Callable[[], object]) -> float:
    """Median time of a call in a captured graph, ten replays in a row: what a captured step pays."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def replays() -> None:
        for _ in range(10):
            graph.replay()

    return milliseconds(replays, 10) / 10


def measure_ranges(case: RangeCase) -> str:
    """A row of the second table; `dense` only where a frame sees one range."""
    slots = case.slots
    query = 2 * torch.randn((case.frames, case.frame_tokens, 16, case.head_dim), device="cuda").to(case.dtype)
    memory = torch.randn((2, int(slots.max()) + 1000, 16, case.head_dim), device="cuda", dtype=case.dtype)
    seen = memory if case.memory is None else memory.to(case.memory)
    out = attend_ranges(query, seen, slots)
    expected = attend_ranges_reference(query, memory, slots)
    wrong = float((out.float() - expected).norm() / expected.norm())
    took_ms = replay_ms(lambda: attend_ranges(query, seen, slots, out))
    dense = "-"
    if len(case.ranges) == 1:
        parts = [(query[s], *memory[:, first:stop]) for s, ((first, stop),) in enumerate(slots.tolist())]
        dense = f"{replay_ms(lambda: [attend_all(*part) for part in parts]):.3f}"
    count = sum(count for _, count in case.ranges)
    tera = 4 * case.frames * case.frame_tokens * count * 16 * case.head_dim / took_ms / 1e9
    return f"| {case.name} | {case.frames} | {count} | {took_ms:.3f} | {tera:.0f} | {dense} | {wrong:.1e} |"


@torch.inference_mode()
def print_ranges() -> None:
    """The second table."""
    print("| tokens of a frame | frames | visible slots | ms a call | TFLOP/s | dense ms | error |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for case in RANGE_CASES:
        print(measure_ranges(case), flush=True)


@torch.inference_mode()
def main() -> None:
    device = torch.cuda.get_device_properties(0)
    kernels: tuple[FlashInferKernels, ...] = ("fa2", "fa3") if device.major == 9 else ("fa2",)
    backends: dict[str, AttentionBackend] = {"dense": DenseBackend()}
    backends |= {f"flashinfer {name}": open_flashinfer(SHAPE, name) for name in kernels}
    backends |= {"triton": TritonBackend()}
    print(f"{device.name}, PyTorch {torch.__version__}, bfloat16, 16 heads of 64 channels")
    print("| tokens of a frame | streams | tokens seen | backend | ms a call | TFLOP/s | plan ms a step | error |")
    print("| --- | --: | --: | --- | --: | --: | --: | --: |")
    for case in CASES:
        for name, backend in backends.items():
            print(measure(case, name, backend), flush=True)
    print("dense is", ", ".join(kernels_of(CASES[1], backends["dense"])))


if __name__ == "__main__":
    if sys.argv[1:] != ["ranges"]:
        main()
    print_ranges()
