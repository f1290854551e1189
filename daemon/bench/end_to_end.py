"""The whole path: the real service with synthetic cameras, and a subscriber in a process of its own.

The engine is measured alone before the service gets it, in the worker's thread: weights are loaded once, and the rate
of the cameras can follow from what a step takes.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace

import anyio
import msgspec

from retinad.pipeline.capture.camera import CameraStatus
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.statistics import ModelDescription
from retinad.pipeline.frame_queue import FrameQueue

from ..config.load import ServiceConfig
from ..service.load import make_engine
from ..service.logged_camera import LoggedCamera
from ..service.service import Dependencies, serve
from ..service.systemd import Notifier
from ..versions import find_versions
from .engine import measure_engine
from .plan import BenchPlan
from .results import BenchError, EngineResult, PathResult, Percentiles
from .subscriber import Heard, Noticed

_PATIENCE_S = 10.0
"""How long after the service's end the subscriber may take to hear of it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Both measurements of a run, and what ran."""

    model: ModelDescription
    engine: EngineResult
    path: PathResult


@dataclass(frozen=True, slots=True)
class _Alone:
    model: ModelDescription
    result: EngineResult
    fps: float


class _BenchDependencies:
    """The service's edges: an engine that was measured on its way in, and cameras at the rate that follows from it."""

    def __init__(self, plan: BenchPlan) -> None:
        self._plan = plan
        self.alone: _Alone | None = None

    def make_engine(self, config: ServiceConfig) -> Engine:
        engine = make_engine(config)
        result = measure_engine(engine, self._plan)
        self.alone = _Alone(engine.description, result, round(self._plan.rate(1 / result.steps_per_s), 3))
        return engine

    def make_camera(
        self, config: CameraConfig, queue: FrameQueue, on_status: Callable[[CameraStatus], None], *, first_epoch: int
    ) -> LoggedCamera:
        assert self.alone is not None
        width, height, fps, seed, frames, period = astuple(
            self._plan.spec(self.alone.fps, self._plan.names.index(config.name))
        )
        source = f"synthetic:?width={width}&height={height}&fps={fps}&seed={seed}&frames={frames}&period={period}"
        return LoggedCamera(replace(config, source=source), queue, on_status, first_epoch=first_epoch)


def measure(plan: BenchPlan, config: ServiceConfig) -> Measured:
    """Measure the engine, then the whole path.

    Args:
        plan: what to measure.
        config: the service's, as `plan.service` gives it.

    Raises:
        BenchError: the run was interrupted, or gave nothing to measure.
        ModelError, DeviceError, PublishError: as from `serve`.
    """
    dependencies = _BenchDependencies(plan)
    endpoint = config.publish.endpoints[0]
    command = [sys.executable, "-P", "-m", f"{__package__}.subscriber", endpoint, str(plan.cameras)]
    # In a session of its own: Ctrl-C is for the service, which ends the subscriber.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    ) as listener:
        try:
            _serve(config, dependencies)
            alone = dependencies.alone
            if alone is None:
                raise BenchError("it was stopped before anything was measured")
            heard = _hear(listener)
        finally:
            with suppress(ProcessLookupError):
                listener.kill()
    return Measured(alone.model, alone.result, summarize(heard, plan, alone.fps))


def summarize(heard: Heard, plan: BenchPlan, fps: float) -> PathResult:
    """What the subscriber's notes say of the time in which every camera was running with a filled stream.

    Raises:
        BenchError: there was no such time, as when most frames are dropped.
    """
    records = _steady(heard.records, plan)
    if len(records) < 2:
        raise BenchError(
            f"of {heard.captured} frames {heard.published} were published ({heard.dropped} dropped, {heard.failed} "
            f"failed) and {len(heard.records)} received: too few to measure; ask for more --steps or fewer --fps"
        )
    seconds = (records[-1].receive_ns - records[0].receive_ns) / 1e9
    return PathResult(
        fps=fps,
        records=len(records),
        frames_per_s=round((len(records) - 1) / seconds, 3),
        capture_to_publish_ms=_percentiles([record.capture_to_publish_us for record in records]),
        capture_to_receive_ms=_percentiles([record.capture_to_receive_us for record in records]),
        outside_model_ms=_percentiles([record.capture_to_publish_us - record.model_us for record in records]),
        queue_ms=_percentiles([record.queue_us for record in records]),
        preprocess_ms=_percentiles([record.preprocess_us for record in records]),
        model_ms=_percentiles([record.model_us for record in records]),
        publish_ms=_percentiles([record.publish_us for record in records]),
        captured=heard.captured,
        published=heard.published,
        dropped=heard.dropped,
        failed=heard.failed,
        lost=heard.lost,
    )


def _steady(records: Sequence[Noticed], plan: BenchPlan) -> list[Noticed]:
    filled: dict[str, list[int]] = {name: [] for name in plan.names}
    for record in records:
        if not record.warmup and (record.epoch or record.epoch_frame >= plan.fill_steps):
            filled[record.camera].append(record.receive_ns)
    if not all(filled.values()):
        return []
    first = max(times[0] for times in filled.values())
    last = min(times[-1] for times in filled.values())
    return [record for record in records if first <= record.receive_ns <= last and not record.warmup]


def _percentiles(microseconds: Sequence[float]) -> Percentiles:
    return Percentiles.of([value / 1e3 for value in microseconds])


def _serve(config: ServiceConfig, dependencies: _BenchDependencies) -> None:
    everything = Dependencies(
        load_config=lambda: config,
        configure=lambda config: None,
        versions=find_versions(),
        make_engine=dependencies.make_engine,
        make_camera=dependencies.make_camera,
    )
    anyio.run(serve, config, everything, Notifier({}))


def _hear(listener: "subprocess.Popen[bytes]") -> Heard:
    try:
        output, _ = listener.communicate(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise BenchError("the cameras did not play to their end: it was stopped, or the subscriber lost it") from None
    if listener.returncode:
        raise BenchError(f"the subscriber ended with code {listener.returncode}")
    return msgspec.json.decode(output, type=Heard)
