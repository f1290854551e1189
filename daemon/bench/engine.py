"""The benchmark of the engine alone. Steps with one frame per stream are timed one by one, with full stream memory.

The frames of the next step are available while a step runs, as with cameras that are faster than the model.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from retinad.pipeline.engine.device_usage import gpu_busy_s, peak_memory
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Frame, FrameFailure, FrameStamp

from .plan import BenchPlan
from .results import BenchError, EngineResult, Percentiles

_IMAGES = 8
"""Number of images in memory that the cameras show in turn, so that two consecutive frames always differ."""

_PROFILED_STEPS = 10


def measure_engine(engine: Engine, plan: BenchPlan) -> EngineResult:
    """Open the plan's streams, fill them, measure steps, and close the streams. Call it in the engine's thread.

    Raises:
        BenchError: a frame failed.
        DeviceError: the device failed.
    """
    for name in plan.names:
        first = plan.config.cameras[0]
        engine.open_stream(name, plan.stream, first.resize, outputs=first.outputs)
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
    peak = peak_memory(engine.description.device)
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
        image_bytes=max(stream.recent_nbytes for stream in streams),
        peak_bytes=peak.used_bytes,
        reserved_bytes=peak.reserved_bytes,
    )


def _frames(plan: BenchPlan) -> Iterator[list[Frame]]:
    """Yield lists with one frame per camera, stamped with the current time, forever."""
    scene = plan.spec(fps=1.0, seed=0).scene()
    images = [np.ascontiguousarray(scene.image(number)) for number in range(_IMAGES)]
    number = 0
    while True:
        now_ns, unix_ns = time.monotonic_ns(), time.time_ns()
        yield [
            Frame(FrameStamp(name, 0, number, unix_ns, now_ns, None, plan.size), images[(number + index) % _IMAGES])
            for index, name in enumerate(plan.names)
        ]
        number += 1


def _step(engine: Engine, frames: Sequence[Frame], following: Sequence[Frame]) -> float:
    """Run a step, and return the seconds until its features are in host memory."""
    begun = time.perf_counter()
    outcomes = engine.step(frames, lambda running: engine.prepare(following))
    took_s = time.perf_counter() - begun
    for outcome in outcomes:
        if isinstance(outcome, FrameFailure):
            raise BenchError(f"a frame of {outcome.stamp.camera} failed: {outcome.reason}")
    return took_s


def _epochs(engine: Engine) -> int:
    return sum(stream.epoch for stream in engine.statistics().streams)


def _busy(engine: Engine, steps: Iterator[tuple[list[Frame], list[Frame]]], step_s: float) -> float | None:
    """Share of a typical step in which the GPU was busy; None on a CPU.

    The busy time is that of profiled steps, but the step's duration is that of unprofiled ones.
    """

    def work() -> None:
        for _ in range(_PROFILED_STEPS):
            _step(engine, *next(steps))

    busy_s = gpu_busy_s(engine.description.device, work)
    return None if busy_s is None else round(busy_s / _PROFILED_STEPS / step_s, 3)
