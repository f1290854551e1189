"""The end-to-end benchmark: runs the real service with synthetic cameras, and a subscriber in its own process.

The engine is first measured alone, in the worker's thread, and then passed to the service. So weights are loaded only
once, and the cameras' frame rate can be derived from the duration of a step.
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
from .subscriber import Received, RecordTiming

_PATIENCE_S = 10.0
"""Seconds to wait, after the service has ended, until the subscriber has received all `end` messages."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A description of the model, and the results of both measurements of a run."""

    model: ModelDescription
    engine: EngineResult
    path: PathResult


@dataclass(frozen=True, slots=True)
class _Alone:
    model: ModelDescription
    result: EngineResult
    fps: float


class _BenchDependencies:
    """Makes the service's engine, which is measured first, and its cameras, whose frame rate depends on the result."""

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
    """Measure the engine alone, then the whole path from cameras to a subscriber.

    Args:
        plan: what to measure.
        config: the service's config, from `plan.service`.

    Raises:
        BenchError: the run was interrupted, or there was nothing to measure.
        ModelError, DeviceError, PublishError: raised by `serve`.
    """
    dependencies = _BenchDependencies(plan)
    endpoint = config.publish.endpoints[0]
    command = [sys.executable, "-P", "-m", f"{__package__}.subscriber", endpoint, str(plan.cameras)]
    # The subscriber runs in its own session, so Ctrl-C reaches only the service. When the service ends, so does the
    # subscriber.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    ) as listener:
        try:
            _serve(config, dependencies)
            alone = dependencies.alone
            if alone is None:
                raise BenchError("the benchmark was stopped before anything was measured")
            received = _receive(listener)
        finally:
            with suppress(ProcessLookupError):
                listener.kill()
    return Measured(alone.model, alone.result, summarize(received, plan, alone.fps))


def summarize(received: Received, plan: BenchPlan, fps: float) -> PathResult:
    """Compute the results for the time in which all cameras were running and their streams were full.

    Raises:
        BenchError: there was no such time, for example because most frames were dropped.
    """
    records = _steady(received.records, plan)
    if len(records) < 2:
        raise BenchError(
            f"too few records to measure: of {received.captured} frames, {received.published} were published "
            f"({received.dropped} dropped, {received.failed} failed), and the subscriber received "
            f"{len(received.records)} records; raise --steps or lower --fps"
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
        captured=received.captured,
        published=received.published,
        dropped=received.dropped,
        failed=received.failed,
        lost=received.lost,
    )


def _steady(records: Sequence[RecordTiming], plan: BenchPlan) -> list[RecordTiming]:
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
    service = Dependencies(
        load_config=lambda: config,
        configure=lambda config: None,
        versions=find_versions(),
        make_engine=dependencies.make_engine,
        make_camera=dependencies.make_camera,
    )
    anyio.run(serve, config, service, Notifier({}))


def _receive(listener: "subprocess.Popen[bytes]") -> Received:
    try:
        output, _ = listener.communicate(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise BenchError(
            "the benchmark was stopped before the cameras ended, or the subscriber missed their `end` messages"
        ) from None
    if listener.returncode:
        raise BenchError(f"the subscriber ended with exit code {listener.returncode}")
    return msgspec.json.decode(output, type=Received)
