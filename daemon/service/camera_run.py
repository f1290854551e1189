"""One camera from start to `end`.

Open a stream in the engine; capture until the source ends or `stop` is called; drain the frames in flight; save a
snapshot of the stream if the service is stopping; close the stream; publish `end`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import anyio
import structlog

from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.delivery import Delivery
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.errors import AdmissionError
from retinad.pipeline.frame_queue import FrameQueue
from retinad.pipeline.pump import flush, flush_connection
from retinad.pipeline.worker import Worker

from .camera_log import CAMERA_EVENTS
from .snapshots import StreamSnapshots
from .state import CameraReport

DRAIN_S = 1.0
"""Maximum time, in seconds, that a stopped camera's last frames may take to get through the model."""

WAIT_S = 0.5
"""Additional time, in seconds, for the model's running step if no snapshot is saved."""

CLOSE_S = 0.3
"""Time, in seconds, for closing the stream afterwards."""

_log = structlog.get_logger("retinad")


class Capturing(Protocol):
    """A camera's state machine."""

    @property
    def status(self) -> CameraStatus:
        """Its current state."""

    async def run(self) -> CameraStatus:
        """Fill the queue until the source is finished. Cancelling the call stops capturing within a second."""


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


@dataclass(frozen=True, slots=True)
class CameraServices:
    """Parts of the service that every camera uses.

    Attributes:
        worker: owner of the engine.
        delivery: publishes the frames that the engine still holds when a source ends.
        snapshots: saves and restores streams across a restart.
    """

    worker: Worker[Engine]
    delivery: Delivery
    snapshots: StreamSnapshots


@dataclass(slots=True, eq=False)
class CameraRun:
    """One run of a camera. Used on the event loop only.

    Attributes:
        config: its configuration.
        queue: where its frames go.
        first_epoch: stream epoch of its first connection.
        services: parts of the service.
        make: makes its state machine, from a configuration and the number of its first connection.
        camera: its state machine.
        refusal: why it failed regardless of its source (no room in the engine, no device), or None.
        done: set by its owner once `end` is published.
    """

    config: CameraConfig
    queue: FrameQueue
    first_epoch: int
    services: CameraServices
    make: Callable[[CameraConfig, int], Capturing]
    camera: Capturing = field(init=False)
    refusal: str | None = None
    done: anyio.Event = field(default_factory=anyio.Event)
    _capturing: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _draining: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _closing: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _save: bool = False
    _lost: anyio.Event = field(default_factory=anyio.Event)
    _connection: anyio.CancelScope | None = None
    _reopen_wanted: bool = False

    def __post_init__(self) -> None:
        self.camera = self.make(self.config, self.first_epoch)

    @property
    def status(self) -> CameraStatus:
        """The camera's state, with its queue's rates; failed if the service itself refused it."""
        status = with_rates(self.camera.status, self.queue)
        if self.refusal is None:
            return status
        return replace(status, state=CameraState.FAILED, fault=None, reason=self.refusal)

    @property
    def report(self) -> CameraReport:
        """The camera's state and counters now."""
        last_epoch = self.camera.status.stream_epoch
        next_epoch = self.first_epoch if last_epoch is None else last_epoch + 1
        counters = replace(self.queue.counters)
        return CameraReport(self.config, self.status, counters, next_epoch, self.refusal is not None)

    def lost(self) -> None:
        """Run the frames that still wait for a full first block, because the source's connection has ended."""
        self._lost.set()

    def reopen(self, config: CameraConfig) -> bool:
        """Open the source again with a changed configuration, while the stream continues with its memory.

        Returns:
            False, with nothing done, if the source is not being captured any more.
        """
        if self._connection is None:
            return False
        self.config = config
        self._reopen_wanted = True
        self._connection.cancel()
        return True

    def stop(self, *, save_within_s: float | None) -> None:
        """Stop capturing now, and set deadlines for draining and closing.

        Args:
            save_within_s: seconds for saving a snapshot of the stream, counted from the end of draining, and for the
                step that runs before; None to save none.
        """
        self._save = save_within_s is not None
        self._capturing.cancel()
        self._draining.deadline = anyio.current_time() + DRAIN_S
        self._closing.deadline = self._draining.deadline + (save_within_s or WAIT_S) + CLOSE_S

    async def run(self) -> None:
        """Run the camera until its stream is closed. The owner then publishes `end`."""
        name, worker = self.config.name, self.services.worker
        with self._capturing:
            await self._open()
            if self.refusal is None:
                await self._capture()
        with self._draining:
            await self._drain()
        self.queue.discard()
        with self._closing:
            # A source that ended has no next frame to resume with: no snapshot.
            if self._save and self._capturing.cancelled_caught and self.refusal is None:
                within_s = self._closing.deadline - CLOSE_S - anyio.current_time()
                await self.services.snapshots.save(self.config, within_s)
            await worker.run(lambda engine: engine.close_stream(name))

    async def _open(self) -> None:
        config = self.config
        try:
            await self.services.worker.run(
                lambda engine: engine.open_stream(
                    config.name, config.stream, config.resize, config.crop, config.outputs, config.view
                )
            )
            await self.services.snapshots.restore(config.name)
        except AdmissionError as error:
            self.refusal = str(error)
            _log.error(CAMERA_EVENTS[CameraState.FAILED], camera=config.name, reason=self.refusal)

    async def _capture(self) -> None:
        try:
            while True:
                with anyio.CancelScope() as self._connection:
                    await self._capture_connections()
                    return
                while self._reopen_wanted:
                    self._reopen_wanted = False
                    await self._prepare_to_reopen()
        finally:
            self._connection = None

    async def _capture_connections(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._flush_lost_connections, name=f"flush {self.config.name}")
            await self.camera.run()
            tasks.cancel_scope.cancel()

    async def _prepare_to_reopen(self) -> None:
        config, name = self.config, self.config.name
        await self.queue.emptied()
        # The worker is first in, first out: a step that is running with the last frame comes before this.
        await self.services.worker.run(lambda engine: engine.expect_reconnection(name))
        self.first_epoch = self.report.next_epoch
        self.queue.resize(config.waiting_frames)
        self.camera = self.make(config, self.first_epoch)

    async def _flush_lost_connections(self) -> None:
        while True:
            await self._lost.wait()
            self._lost = anyio.Event()
            epoch = self.camera.status.stream_epoch
            if epoch is not None:
                await self.queue.emptied()
                # Frames of a new connection, which may have arrived by now, wait for their own first block.
                await flush_connection(self.config.name, epoch, self.services.worker, self.services.delivery)

    async def _drain(self) -> None:
        await self.queue.emptied()
        # The worker is first in, first out: a step that is running with the last frame comes before this.
        await flush(self.config.name, self.services.worker, self.services.delivery)
        await self.queue.settled()


def with_rates(status: CameraStatus, queue: FrameQueue) -> CameraStatus:
    """A camera's status with the rates of its queue."""
    return replace(status, published_fps=queue.published_fps, dropped_fps=queue.dropped_fps)
