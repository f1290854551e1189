"""One camera's life as a state machine: connects, fills its queue, notices trouble, waits, connects again."""

import random
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum

import anyio

from ..config import CameraConfig
from ..errors import SourceError, SourceFault
from ..frame_queue import FrameQueue
from ..frames import Frame, FrameStamp, Size
from ..sources.reader import SourceInfo
from .backoff import Backoff
from .capture import Capture, Captured, OnLog, ignore_log, open_capture
from .faults import is_damage
from .pacing import LONGEST_GAP_NS, SECOND_NS
from .rate import FreezeWatch, RateMeter

OpenCapture = Callable[[CameraConfig, OnLog], AbstractAsyncContextManager[Capture]]


class CameraState(StrEnum):
    """Where a camera is in its life."""

    CONNECTING = "connecting"
    """The source is being opened, or has sent no frame yet."""
    RUNNING = "running"
    STALLED = "stalled"
    """It runs, but sent nothing new for too long; it is opened again at once or after a backoff."""
    BACKOFF = "backoff"
    """It failed, and is tried again."""
    ENDED = "ended"
    """A finite source has played."""
    FAILED = "failed"
    """It failed, and is not tried again."""


@dataclass(frozen=True, slots=True)
class CameraStatus:
    """A camera's state at one moment. Holds no secret.

    Attributes:
        camera: its name.
        state: see `CameraState`.
        fault: what sort of failure it is, in the states stalled, backoff and failed.
        reason: the failure in words; or, of an ended source, what was odd about its end.
        attempt: failures in a row.
        next_try_s: seconds until the next try in the state backoff, else None.
        stream_epoch: number of the last connection, or None before the first.
        size: width and height of the last frame in pixels, or None before the first.
        fps: frames a second as measured, 0 where none come.
        last_frame_age_s: seconds since the last frame came, or None before the first.
        info: what the source said of itself when it was last opened.
    """

    camera: str
    state: CameraState
    fault: SourceFault | None = None
    reason: str | None = None
    attempt: int = 0
    next_try_s: float | None = None
    stream_epoch: int | None = None
    size: Size | None = None
    fps: float = 0.0
    last_frame_age_s: float | None = None
    info: SourceInfo | None = None


class Camera:
    """One camera, from its config to frames in its queue.

    Args:
        config: the camera.
        queue: where frames go; its counters are kept right.
        on_status: told each change of state, of connection and of frame size.
        on_log: told each line that the capture process prints, without secrets.
        capture: opens a source.
        first_epoch: number of the first connection; after a reload, one more than the last of the camera before.
        backoff: waits between tries.
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
        capture: OpenCapture = open_capture,
        first_epoch: int = 0,
        backoff: Backoff = Backoff(),  # noqa: B008  # frozen
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._queue = queue
        self._on_status = on_status
        self._on_log = on_log
        self._open = capture
        self._backoff = backoff
        self._jitter = jitter
        self._clock = clock
        self._rate = RateMeter(clock)
        self._next_epoch = first_epoch
        self._epoch: int | None = None
        self._plays = 0
        self._attempt = 0
        self._running_since: float | None = None
        self._next_try_at: float | None = None
        self._last_frame_at: float | None = None
        self._last_pts_ns: int | None = None
        self._damaged = False
        self._state = CameraState.CONNECTING
        self._fault: SourceFault | None = None
        self._reason: str | None = None
        self._size: Size | None = None
        self._info: SourceInfo | None = None

    @property
    def status(self) -> CameraStatus:
        """The state right now."""
        left_s = None if self._next_try_at is None else max(0.0, self._next_try_at - self._clock())
        return CameraStatus(
            camera=self._config.name,
            state=self._state,
            fault=self._fault,
            reason=self._reason,
            attempt=self._attempt,
            next_try_s=left_s,
            stream_epoch=self._epoch,
            size=self._size,
            fps=self._rate.fps,
            last_frame_age_s=None if self._last_frame_at is None else self._clock() - self._last_frame_at,
            info=self._info,
        )

    async def run(self) -> CameraStatus:
        """Run until the source has played or failed for good. Cancel it to stop: that takes less than a second.

        Returns:
            The last status, `ended` or `failed`. Failures are in it; none is raised.
        """
        while True:
            try:
                reason = await self._play()
            except SourceError as exc:
                if not self._config.retry and exc.fault is not SourceFault.RESIZED:
                    return self._enter(CameraState.FAILED, exc.fault, str(exc))
                await self._back_off(exc)
            else:
                return self._enter(CameraState.ENDED, reason=reason)

    async def _play(self) -> str | None:
        self._enter(CameraState.CONNECTING)
        async with self._open(self._config, self._hear) as capture:
            while True:
                self._begin(capture)
                await self._read(capture)
                self._plays += 1
                if self._plays == self._config.loop:
                    return self._early_end(capture)
                await capture.rewind()

    def _begin(self, capture: Capture) -> None:
        self._info = capture.info
        self._epoch = self._next_epoch
        self._next_epoch += 1
        self._running_since = None
        self._last_pts_ns = None

    def _hear(self, line: str) -> None:
        if is_damage(line):
            self._damaged = True
            self._queue.count_decode_error()
        self._on_log(line)

    async def _read(self, capture: Capture) -> None:
        freeze = FreezeWatch(self._clock) if capture.info.backend == "v4l2" else None
        while (captured := await self._receive(capture)) is not None:
            if freeze is not None and freeze.frozen_s(captured.pixels) >= self._config.stall_timeout_s:
                raise self._stalled("the very same picture")
            await self._pass_on(captured, capture)
            del captured  # else its slot is taken until the next frame comes
        if capture.ended is not None:
            self._queue.count_skipped(capture.ended.skipped)
            self._queue.count_unreadable(capture.ended.failed)
        if self._running_since is None:
            raise SourceError(SourceFault.UNREADABLE, "not a single frame of it can be read")

    async def _receive(self, capture: Capture) -> Captured | None:
        while True:
            with anyio.move_on_after(self._patience_s(capture.info)):
                return await capture.receive()
            if not capture.starved:
                raise self._stalled("no new frame")

    async def _pass_on(self, captured: Captured, capture: Capture) -> None:
        self._queue.count_skipped(captured.skipped)
        self._queue.count_unreadable(captured.failed)
        frame = self._frame(captured)
        self._rate.count()
        self._last_frame_at, self._last_pts_ns = self._clock(), captured.pts_ns
        self._notice(frame)
        if not self._queue.would_wait:
            await self._queue.put(frame)
            return
        async with anyio.create_task_group() as tasks:  # a model that is slower than the source may take its time
            tasks.start_soon(capture.listen, name="listen")
            await self._queue.put(frame)
            tasks.cancel_scope.cancel()

    def _frame(self, captured: Captured) -> Frame:
        assert self._epoch is not None
        height, width, _ = captured.pixels.shape
        stamp = FrameStamp(
            camera=self._config.name,
            stream_epoch=self._epoch,
            source_seq=captured.source_seq,
            capture_unix_ns=captured.capture_unix_ns,
            capture_monotonic_ns=captured.capture_monotonic_ns,
            pts_ns=captured.pts_ns,
            source_size=(width, height),
        )
        return Frame(stamp, captured.pixels)

    def _notice(self, frame: Frame) -> None:
        resized = frame.stamp.source_size != self._size
        self._size = frame.stamp.source_size
        if self._running_since is None:
            self._running_since = self._clock()
            self._enter(CameraState.RUNNING)
        elif resized:
            self._on_status(self.status)

    async def _back_off(self, exc: SourceError) -> None:
        if self._running_since is not None and self._clock() - self._running_since >= self._backoff.healthy_s:
            self._attempt = 0
        self._running_since = None
        self._attempt += 1
        if exc.fault is SourceFault.STALLED:
            self._enter(CameraState.STALLED, exc.fault, str(exc))
        delay_s = self._backoff.delay_s(self._attempt, exc.fault.permanent, self._jitter)
        self._next_try_at = self._clock() + delay_s
        self._enter(CameraState.BACKOFF, exc.fault, str(exc))
        await anyio.sleep(delay_s)
        self._next_try_at = None

    def _enter(self, state: CameraState, fault: SourceFault | None = None, reason: str | None = None) -> CameraStatus:
        self._state, self._fault, self._reason = state, fault, reason
        if state is not CameraState.RUNNING:
            self._rate.clear()
        self._on_status(self.status)
        return self.status

    def _early_end(self, capture: Capture) -> str | None:
        expected = capture.info.frame_count
        if capture.ended is None or expected is None or capture.ended.frames >= expected:
            return None
        if not self._damaged and _is_at_its_end(capture.info, self._last_pts_ns):
            return None
        return f"it ended after {capture.ended.frames} of {expected} frames"

    def _stalled(self, what: str) -> SourceError:
        return SourceError(SourceFault.STALLED, f"{what} for {self._config.stall_timeout_s:g} s")

    def _patience_s(self, info: SourceInfo) -> float:
        # A frame that is held back until it is due is not late.
        pause_s = 1 / self._config.fps if self._config.fps else 0.0 if info.live else LONGEST_GAP_NS / SECOND_NS
        return self._config.stall_timeout_s + pause_s


def _is_at_its_end(info: SourceInfo, pts_ns: int | None) -> bool:
    """Whether the frame at this time is where a source of so many frames at its nominal rate ends.

    Some containers hold no count, and OpenCV makes one of their length and rate: too many where frames come unevenly.
    """
    if pts_ns is None or not info.fps or info.frame_count is None:
        return False
    return round(pts_ns / SECOND_NS * info.fps) >= info.frame_count - 1
