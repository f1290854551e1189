"""The camera state machine: opens a source, feeds its frames to a queue, and reopens the source after failures.

Each part of the state has one owner. `StatusReporter` owns the status, `RetrySchedule` counts failures, `StallWatch`
detects a silent source, and `StreamEpoch` numbers the frames of one pass and judges its end.

"""

import itertools
import random
import time
from collections.abc import Callable

import anyio

from ..config import CameraConfig
from ..errors import SourceError, SourceFault
from ..frame_queue import FrameQueue
from .backoff import Backoff, RetrySchedule
from .capture import Capture, CapturedFrame, OnLog, ignore_log, start_capture
from .faults import is_damage, is_truncation
from .keeper import CaptureKeeper, StartCapture
from .stall import StallWatch
from .starts import CaptureStarts
from .status import CameraState, CameraStatus, StatusReporter
from .stream_epoch import StreamEpoch

__all__ = ["Camera", "CameraState", "CameraStatus"]

_FREE_STARTS = 3
"""Number of failures in a row up to which a camera's lost capture process is replaced without an additional wait."""


class Camera:
    """One camera, from its config to frames in its queue.

    Args:
        config: the camera.
        queue: queue for its frames, whose counters the camera maintains.
        on_status: called on each change of state, connection or frame size.
        on_log: called with each line that the capture process prints, without secrets.
        capture: starts a capture process.
        starts: the budget of such starts, which cameras share.
        first_epoch: number of the first connection. After a reload, it is one more than the last number of the
            camera that this one replaces.
        backoff: waits between attempts.
        jitter: uniform in [0, 1).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        config: CameraConfig,
        queue: FrameQueue,
        on_status: Callable[[CameraStatus], None],
        *,
        on_log: OnLog = ignore_log,
        capture: StartCapture = start_capture,
        starts: CaptureStarts | None = None,
        first_epoch: int = 0,
        backoff: Backoff = Backoff(),  # noqa: B008  # frozen
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._queue = queue
        self._on_log = on_log
        self._starts = starts or CaptureStarts()
        self._keeper = CaptureKeeper(config, self._on_line, capture, self._starts)
        self._clock = clock
        self._reporter = StatusReporter(config.name, on_status, clock)
        self._retries = RetrySchedule(backoff, jitter, clock)
        self._epochs = itertools.count(first_epoch)
        self._plays = 0
        self._damaged = False
        self._truncated = False

    @property
    def status(self) -> CameraStatus:
        """The status right now."""
        return self._reporter.status

    async def run(self) -> CameraStatus:
        """Run until the source has played or failed for good. Cancel it to stop, which takes less than a second.

        Returns:
            The last status, `ended` or `failed`. Failures are reported there, not raised.
        """
        async with self._keeper:
            while True:
                try:
                    reason = await self._run_connection()
                except SourceError as exc:
                    if not self._config.retry and exc.fault is not SourceFault.RESIZED:
                        return self._reporter.enter(CameraState.FAILED, exc.fault, str(exc))
                    await self._back_off(exc)
                else:
                    return self._reporter.enter(CameraState.ENDED, reason=reason)

    async def _run_connection(self) -> str | None:
        self._reporter.enter(CameraState.CONNECTING)
        async with self._keeper.connection() as capture:
            while True:
                epoch = StreamEpoch(self._config.name, next(self._epochs), capture.info)
                await self._play(capture, epoch)
                self._plays += 1
                if self._plays == self._config.loop:
                    return epoch.early_end(capture.ended, damaged=self._damaged, truncated=self._truncated)
                await capture.rewind()

    async def _play(self, capture: Capture, epoch: StreamEpoch) -> None:
        self._retries.mark_opened()
        self._reporter.opened(epoch.number, capture.info)
        watch = StallWatch(capture, self._config, self._clock)
        try:
            while (captured := await watch.receive()) is not None:
                await self._enqueue(captured, capture, epoch)
                del captured  # otherwise this frame's slot stays taken until the next one arrives
        finally:
            if capture.ended is not None:
                self._queue.count_skipped(capture.ended.skipped)
                self._queue.count_unreadable(capture.ended.failed)
        if epoch.is_empty:
            raise SourceError(SourceFault.UNREADABLE, "none of its frames can be read")

    async def _enqueue(self, captured: CapturedFrame, capture: Capture, epoch: StreamEpoch) -> None:
        self._queue.count_skipped(captured.skipped)
        self._queue.count_unreadable(captured.failed)
        first = epoch.is_empty
        frame = epoch.stamp(captured)
        if first:
            self._retries.mark_running()
        self._reporter.frame_arrived(frame.stamp.captured_size, first=first)
        if not self._queue.would_wait:
            await self._queue.put(frame)
            return
        async with anyio.create_task_group() as tasks:  # the log is read while a slower model applies backpressure
            tasks.start_soon(capture.forward_log, name="forward log")
            await self._queue.put(frame)
            tasks.cancel_scope.cancel()

    def _on_line(self, line: str) -> None:
        self._truncated |= is_truncation(line)
        if is_damage(line):
            self._damaged = True
            self._queue.count_decode_error()
        self._on_log(line)

    async def _back_off(self, exc: SourceError) -> None:
        delay_s = self._retries.next_delay_s(permanent=exc.fault.permanent)
        if self._keeper.lost and self._retries.failures > _FREE_STARTS:
            delay_s = max(delay_s, self._starts.reserve_s())
        self._reporter.failed(exc.fault, str(exc), self._retries.failures, delay_s)
        await anyio.sleep(delay_s)
