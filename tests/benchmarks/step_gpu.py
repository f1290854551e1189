"""Steps of the full-size network on a GPU with full windows: their duration, and where the time is spent.

`python tests/benchmarks/step_gpu.py attention:1 hybrid:1 attention:4 hybrid:1:32 attention:1:1:plain` measures each job
MIXERS:STREAMS[:FRAMES[:EXECUTION]]: steps of FRAMES frames of each stream, from pixels in host memory to features in
host memory, with the next step's frames already waiting; and the captured graph alone. Weights are random.
`retinad bench` measures what the service adds.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import cast
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from retinad.pipeline.config import ExecutionName, MixerName, ModelConfig, NetworkConfig, ResizeMode
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Features, Frame, FrameStamp, Outcome
from retinad.pipeline.model.presets import LINGBOT_MAP
from retinad.pipeline.model.random_init import random_weight

SIZE = (1036, 756)
"""Resized to 518x378: 999 patches."""

STEPS, REPLAYS, ROWS = 200, 20, 24
MIXERS: Mapping[str, tuple[MixerName, ...]] = {
    "attention": ("attention",),
    "hybrid": ("kda", "kda", "kda", "attention"),
}
STREAM = LINGBOT_MAP.stream
FILLED = STREAM.scale_frames + STREAM.window + 4
IMAGES = [np.random.default_rng(n).integers(0, 256, (SIZE[1], SIZE[0], 3), np.uint8) for n in range(4)]


@dataclass(frozen=True)
class Job:
    """One measurement."""

    mixers: str
    streams: int
    frames: int = 1
    execution: ExecutionName = "auto"

    @classmethod
    def of(cls, text: str) -> "Job":
        mixers, streams, count, execution = (*text.split(":"), *("", "1", "1", "auto")[text.count(":") + 1 :])
        return cls(mixers, int(streams), int(count), cast(ExecutionName, execution))

    @property
    def config(self) -> ModelConfig:
        return ModelConfig(
            network=replace(NetworkConfig(), mixers=MIXERS[self.mixers]),
            device="cuda:0",
            dtype="bfloat16",
            attention="dense" if self.execution == "plain" else "auto",
            execution=self.execution,
            max_batch=max(8, self.streams * self.frames),
        )


def quick_weights(wanted: Mapping[str, Tensor], seed: int) -> Iterator[tuple[str, Tensor]]:
    """Random weights of the model's own scale, drawn on the device: one second instead of ten."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    for name, value in wanted.items():
        small = random_weight(name, (1, *value.shape[1:]), np.random.default_rng(0))
        drawn = torch.randn(value.shape, device="cuda", generator=generator)
        constant = float(np.ptp(small)) == 0.0
        yield name, torch.full_like(drawn, float(small.flat[0])) if constant else drawn * float(small.std())


def frames(job: Job, number: int, count: int) -> list[Frame]:
    now = (time.time_ns(), time.monotonic_ns())
    stamps = [
        FrameStamp(f"camera{n}", 0, number + more, *now, None, SIZE)
        for n in range(job.streams)
        for more in range(count)
    ]
    return [Frame(stamp, IMAGES[stamp.source_seq % len(IMAGES)]) for stamp in stamps]


def checked(outcomes: list[Outcome]) -> list[Outcome]:
    assert all(isinstance(outcome, Features) for outcome in outcomes), outcomes
    return outcomes


def measure(job: Job, steps: int) -> None:
    torch.cuda.reset_peak_memory_stats()
    with Engine(job.config) as engine:
        for n in range(job.streams):
            engine.open_stream(f"camera{n}", replace(STREAM, run_frames=job.frames), ResizeMode.CROP)
        took_ms = []
        first = -(-FILLED // job.frames)
        taken = pairwise(frames(job, number * job.frames, job.frames) for number in range(first + steps + 1))
        for now, following in taken:
            begun = time.perf_counter()
            checked(engine.step(now, partial(prepare, engine, following)))
            took_ms.append((time.perf_counter() - begun) * 1e3)
        del took_ms[:first]
        report(job, engine, took_ms)
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
            engine.step(frames(job, (first + steps) * job.frames, job.frames))
        for event in sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)[:ROWS]:
            print(f"    {event.self_device_time_total / 1e3:8.3f} ms {event.count:5} x {event.key[:80]}", flush=True)


def prepare(engine: Engine, frames: list[Frame], running: Callable[[], bool]) -> None:
    engine.prepare(frames)


def report(job: Job, engine: Engine, took_ms: list[float]) -> None:
    p50, p95, p99 = (float(np.percentile(took_ms, q)) for q in (50, 95, 99))
    print(
        f"{job}: {engine.description.execution}, {engine.description.attention}; {len(took_ms)} steps, "
        f"p50 {p50:.2f} ms, p95 {p95:.2f}, p99 {p99:.2f}, p99/p50 {p99 / p50:.3f}, "
        f"{p50 / job.streams / job.frames:.2f} ms a frame; peak {torch.cuda.max_memory_allocated() / 1e9:.2f} GB, "
        f"a stream {engine.statistics().streams[0].nbytes / 1e9:.3f} GB",
        flush=True,
    )
    runner = engine.model_runner.graphs
    if runner is not None and runner.graphs:
        print(f"    the graph alone: {replay_ms(runner.graphs[-1]):.3f} ms, median of {REPLAYS}", flush=True)


def replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    pairs = [(event(), event()) for _ in range(REPLAYS)]
    for begin, end in pairs:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(float(begin.elapsed_time(end)) for begin, end in pairs)


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def main(texts: list[str]) -> None:
    mock.patch("retinad.pipeline.model.checkpoint.random_tensors", quick_weights).start()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    for text in texts:
        job = Job.of(text)
        measure(job, max(8, STEPS // job.frames))


if __name__ == "__main__":
    main(sys.argv[1:] or ["attention:1", "hybrid:1", "attention:4"])
