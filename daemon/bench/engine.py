"""The engine alone: steps with one frame of each stream, timed one by one, once the streams remember all they can.

The frames of the next step wait already while one runs, as where cameras give more than the model takes.
"""

import resource
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Frame, FrameFailure, FrameStamp

from .plan import BenchPlan
from .results import BenchError, EngineResult, Percentiles

_PICTURES = 8
"""Pictures in memory, which the cameras show in turn: enough that two frames in a row differ, whatever their size."""

_PROFILED_STEPS = 10


def measure_engine(engine: Engine, plan: BenchPlan) -> EngineResult:
    """Open the plan's streams, fill them, measure, and close them. In the engine's thread.

    Raises:
        BenchError: a frame gave no features.
        DeviceError: the device failed.
    """
    for name in plan.names:
        engine.open_stream(name, plan.stream, plan.config.cameras[0].resize)
    try:
        return _measure(engine, plan)
    finally:
        for name in plan.names:
            engine.close_stream(name)


def _measure(engine: Engine, plan: BenchPlan) -> EngineResult:
    steps = pairwise(_frames(plan))
    for _ in range(plan.fill_steps):
        _step(engine, *next(steps))
    epochs = _epochs(engine)
    seconds = [_step(engine, *next(steps)) for _ in range(plan.steps)]
    epochs_begun = _epochs(engine) - epochs
    streams = engine.statistics().streams
    peak_bytes, reserved_bytes = _peak(engine)
    total_s, step_ms = sum(seconds), Percentiles.of([1e3 * second for second in seconds])
    return EngineResult(
        fill_steps=plan.fill_steps,
        steps=plan.steps,
        step_ms=step_ms,
        steps_per_s=round(plan.steps / total_s, 3),
        frames_per_s=round(plan.steps * plan.cameras / total_s, 3),
        gpu_busy=_busy(engine, steps, step_ms.p50 / 1e3),
        epochs_begun=epochs_begun,
        state_bytes=max(stream.nbytes for stream in streams),
        picture_bytes=max(stream.recent_nbytes for stream in streams),
        peak_bytes=peak_bytes,
        reserved_bytes=reserved_bytes,
    )


def _frames(plan: BenchPlan) -> Iterator[list[Frame]]:
    """For ever, one frame of each camera, captured just now."""
    scene = plan.spec(fps=1.0, seed=0).scene()
    pictures = [np.ascontiguousarray(scene.image(number)) for number in range(_PICTURES)]
    number = 0
    while True:
        now_ns, unix_ns = time.monotonic_ns(), time.time_ns()
        yield [
            Frame(FrameStamp(name, 0, number, unix_ns, now_ns, None, plan.size), pictures[(number + index) % _PICTURES])
            for index, name in enumerate(plan.names)
        ]
        number += 1


def _step(engine: Engine, frames: Sequence[Frame], following: Sequence[Frame]) -> float:
    """Seconds that a step takes; its features are in the host's memory when it is over."""
    begun = time.perf_counter()
    outcomes = engine.step(frames, lambda running: engine.prepare(following))
    took_s = time.perf_counter() - begun
    for outcome in outcomes:
        if isinstance(outcome, FrameFailure):
            raise BenchError(f"a frame of {outcome.stamp.camera} gave no features: {outcome.reason}")
    return took_s


def _epochs(engine: Engine) -> int:
    return sum(stream.epoch for stream in engine.statistics().streams)


def _busy(engine: Engine, steps: Iterator[tuple[list[Frame], list[Frame]]], step_s: float) -> float | None:
    """Share of a usual step in which the GPU ran something: its own time from a few steps that the profiler sees.

    The profiler slows the host down, so the step's length is that of steps without it.
    """
    if not engine.description.device.startswith("cuda"):
        return None
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        for _ in range(_PROFILED_STEPS):
            _step(engine, *next(steps))
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in seen.events() or ()
        if event.device_type.name == "CUDA"
    ]
    return round(covered(spans) / 1e6 / _PROFILED_STEPS / step_s, 3) if spans else None


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Length of what spans cover together; what several cover counts once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _peak(engine: Engine) -> tuple[int, int | None]:
    device = engine.description.device
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, None
