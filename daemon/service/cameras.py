"""The cameras that run: each started, stopped or exchanged by itself, while the others go on undisturbed.

The life of one camera: a stream is opened in the engine; its source is captured until it ends or is told to stop; the
frames on their way are drained; what the stream remembers is kept, if the service ends and was told to; the stream is
closed; `end` is published. A camera that the engine has no room for fails with the reason, and is tried again with the
next `apply`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import anyio
import structlog
from anyio.abc import TaskGroup

from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.delivery import Delivery
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.errors import AdmissionError
from retinad.pipeline.frame_queue import FrameCounters, FrameQueue, FrameQueues
from retinad.pipeline.pump import flush
from retinad.pipeline.worker import Worker

from .snapshots import KeptStates

DRAIN_S = 1.0
"""Seconds that a camera told to stop may take to get its last frames through the model."""

SAVE_S = 0.5
"""Seconds that may then go, with what is left of `DRAIN_S`, into keeping what the streams remember: all of them."""

CLOSE_S = 0.3
"""Seconds that its stream may then take to close."""

PACE_S = 0.002
"""Seconds between the same news of different cameras. A slow subscriber's queue may be as short as 8 messages, and the
number of cameras may grow with a reload: of 64 at once a subscriber that keeps up was measured to lose two thirds, at
this pace none."""

_log = structlog.get_logger("retinad")


class Capturing(Protocol):
    """A camera's state machine."""

    @property
    def status(self) -> CameraStatus:
        """Where it stands."""

    async def run(self) -> CameraStatus:
        """Fill the queue until the source is finished; cancellation stops it within a second."""


class MakeCamera(Protocol):
    """Makes the state machine of a camera."""

    def __call__(
        self,
        config: CameraConfig,
        queue: FrameQueue,
        on_status: Callable[[CameraStatus], None],
        *,
        first_epoch: int,
    ) -> Capturing: ...


class CameraSink(Protocol):
    """Where the cameras' news goes."""

    def camera_changed(self, status: CameraStatus, counters: FrameCounters) -> None:
        """A camera's state changed."""

    def camera_ended(self, status: CameraStatus, counters: FrameCounters, next_seq: int | None) -> None:
        """A camera is finished; its counters are final and add up.

        Args:
            status: its last state.
            counters: what became of its frames.
            next_seq: the number that the next record of its last connection would have had, or None if there was none.
        """


@dataclass(slots=True, eq=False)
class _Running:
    config: CameraConfig
    queue: FrameQueue
    camera: Capturing
    first_epoch: int
    refusal: str | None = None
    capturing: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    draining: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    closing: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)

    @property
    def status(self) -> CameraStatus:
        if self.refusal is None:
            return self.camera.status
        return replace(self.camera.status, state=CameraState.FAILED, fault=None, reason=self.refusal)

    @property
    def report(self) -> "CameraReport":
        last_epoch = self.camera.status.stream_epoch
        next_epoch = self.first_epoch if last_epoch is None else last_epoch + 1
        return CameraReport(self.config, self.status, self.queue.counters, next_epoch, self.refusal is not None)

    def stop(self) -> None:
        """Stop capturing now, and bound what comes after it."""
        self.capturing.cancel()
        self.draining.deadline = anyio.current_time() + DRAIN_S
        self.closing.deadline = self.draining.deadline + SAVE_S + CLOSE_S


@dataclass(frozen=True, slots=True)
class CameraReport:
    """One camera as it stands.

    Attributes:
        config: what it was told.
        status: its state.
        counters: what became of its frames since the service started.
        next_epoch: the stream epoch that a new connection would get.
        refused: whether the engine had no room for it.
    """

    config: CameraConfig
    status: CameraStatus
    counters: FrameCounters
    next_epoch: int
    refused: bool = False


class Cameras:
    """Starts and stops cameras in a task group. Used on the event loop only.

    Args:
        tasks: where the cameras' tasks run.
        queues: where their frames go.
        worker: owner of the engine.
        delivery: publishes what is left in the engine when a source ends.
        sink: told of every change.
        make_camera: builds a camera's state machine.
        states: keeps what the streams remember.
    """

    def __init__(
        self,
        tasks: TaskGroup,
        queues: FrameQueues,
        worker: Worker[Engine],
        delivery: Delivery,
        sink: CameraSink,
        make_camera: MakeCamera,
        states: KeptStates,
    ) -> None:
        self._tasks = tasks
        self._queues = queues
        self._worker = worker
        self._delivery = delivery
        self._sink = sink
        self._make_camera = make_camera
        self._states = states
        self._ending = False
        self._running: dict[str, _Running] = {}
        self._applying = True  # nothing has been applied yet, so nothing is finished
        self._changed = anyio.Event()
        self._telling = anyio.Lock()
        # Kept for cameras that are gone too: if they come back, their totals and epochs go on.
        self._finished: dict[str, CameraReport] = {}
        self._wanted: dict[str, CameraConfig] = {}

    @property
    def reports(self) -> list[CameraReport]:
        """Every configured camera as it stands: those that are not started yet, and finished ones, included."""
        others = [self._finished.get(name) or _unstarted(config) for name, config in self._wanted.items()]
        return [run.report for run in self._running.values()] + [
            report for report in others if report.config.name not in self._running
        ]

    @property
    def counters(self) -> list[FrameCounters]:
        """What became of the frames of every camera since the service started: of those taken out of the config too."""
        over = [report.counters for name, report in self._finished.items() if name not in self._running]
        return over + [run.queue.counters for run in self._running.values()]

    def report(self, camera: str) -> CameraReport | None:
        """One camera as it stands, or None if it is not started yet, or not configured any more."""
        run = self._running.get(camera)
        return run.report if run else self._finished.get(camera) if camera in self._wanted else None

    async def all_finished(self) -> None:
        """Wait until every camera has ended or failed for good."""
        while self._applying or self._running:
            await self._changed.wait()

    async def apply(self, configs: Sequence[CameraConfig]) -> None:
        """Make exactly these cameras run: stop those that are gone or changed, start those that are new or changed.

        A camera whose configuration is the same goes on without losing a frame. A finished one stays finished unless
        its configuration changed, the engine had no room for it, or it was not configured in between.
        """
        wanted = {config.name: config for config in configs}
        before, self._wanted = self._wanted, wanted
        self._applying = True
        await self._stop([run for name, run in self._running.items() if wanted.get(name) != run.config])
        for config in configs:
            finished = self._finished.get(config.name)
            if config.name in self._running:
                continue
            if finished is None or finished.refused or finished.config != config or config.name not in before:
                self._start(config, finished)
                await anyio.sleep(PACE_S)
        self._applying = False
        self._notify()

    async def stop(self) -> None:
        """Stop all cameras for good: captures end at once, frames on their way get `DRAIN_S`, memories are kept if they
        are to be, then each `end` is published.
        """
        self._ending = True
        await self._stop(list(self._running.values()))

    def give_up(self, reason: str) -> None:
        """Publish each camera's `end`, now: the model is gone, and nobody waits for the frames on their way.

        Args:
            reason: why they failed.
        """
        for run in list(self._running.values()):
            run.refusal = reason
            self._finish(run)

    async def _stop(self, runs: Sequence[_Running]) -> None:
        for run in runs:
            run.stop()
        for run in runs:
            await run.done.wait()

    def _start(self, config: CameraConfig, past: CameraReport | None) -> None:
        counters = past.counters if past else FrameCounters()
        first_epoch = past.next_epoch if past else 0
        queue = self._queues.open(
            config.name,
            config.mode,
            config.waiting_frames,
            counters,
            frames_per_step=config.frames_per_step,
            first_epoch=first_epoch,
        )

        def on_status(status: CameraStatus) -> None:
            if status.size is not None:
                self._states.see(config.name, status.size)
            self._sink.camera_changed(status, queue.counters)

        run = _Running(config, queue, self._make_camera(config, queue, on_status, first_epoch=first_epoch), first_epoch)
        self._running[config.name] = run
        self._tasks.start_soon(self._run, run, name=f"camera {config.name}")

    async def _run(self, run: _Running) -> None:
        config = run.config
        with run.capturing:
            await self._open(run)
            if run.refusal is None:
                await run.camera.run()
        with run.draining:
            await self._drain(run)
        run.queue.discard()
        with run.closing:
            # Not of a source that has played: its next frame, if there ever is one, is its first.
            if self._ending and run.capturing.cancelled_caught and run.refusal is None:
                await self._states.save(config, run.closing.deadline - CLOSE_S - anyio.current_time())
            await self._worker.run(lambda engine: engine.close_stream(config.name))
        async with self._telling:
            self._finish(run)
            await anyio.sleep(PACE_S)

    async def _open(self, run: _Running) -> None:
        config = run.config
        try:
            await self._worker.run(lambda engine: engine.open_stream(config.name, config.stream, config.resize))
            await self._states.restore(config.name)
        except AdmissionError as error:
            run.refusal = str(error)
            _log.error(CameraState.FAILED, camera=config.name, reason=run.refusal)

    async def _drain(self, run: _Running) -> None:
        await run.queue.emptied()
        # The worker is first in, first out: a step with the last frame, if one is under way, comes before this.
        await flush(run.config.name, self._worker, self._delivery)
        await run.queue.settled()

    def _finish(self, run: _Running) -> None:
        name = run.config.name
        run.queue.abandon()
        self._queues.close(name)
        self._finished[name] = run.report
        del self._running[name]
        epoch = run.status.stream_epoch
        next_seq = None if epoch is None else self._delivery.next_seq(name, epoch)
        self._sink.camera_ended(run.status, run.queue.counters, next_seq)
        self._delivery.forget(name)
        run.done.set()
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _unstarted(config: CameraConfig) -> CameraReport:
    return CameraReport(config, CameraStatus(config.name, CameraState.CONNECTING), FrameCounters(), 0)
