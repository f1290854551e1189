"""A camera's status: the value that other modules read, and the reporter that keeps it up to date."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from ..errors import SourceFault
from ..frames import Size
from ..sources.reader import SourceInfo
from .rate import RateMeter


class CameraState(StrEnum):
    """State of a camera."""

    CONNECTING = "connecting"
    """The source is being opened, or has not delivered a frame yet."""
    RUNNING = "running"
    STALLED = "stalled"
    """The source is open but delivered nothing new for too long; it is opened again after a backoff."""
    BACKOFF = "backoff"
    """The source failed; a retry is scheduled."""
    ENDED = "ended"
    """A finite source has played."""
    FAILED = "failed"
    """The source failed; there is no retry."""


@dataclass(frozen=True, slots=True)
class CameraStatus:
    """A camera's state at one moment. Contains no secret.

    Attributes:
        camera: name of the camera.
        state: see `CameraState`.
        fault: kind of failure, in the states stalled, backoff and failed.
        reason: the failure in words; or, for an ended source, what was unusual about its end.
        attempt: number of failures in a row.
        next_try_s: seconds until the next attempt in the state backoff, else None.
        stream_epoch: number of the latest connection, or None before the first.
        size: width and height of the latest frame in pixels, or None before the first.
        fps: measured frames per second, 0 if none arrive.
        published_fps: frames published per second; filled in where the camera's queue is known.
        dropped_fps: frames dropped per second, because they arrived faster than the model processes them; also filled
            in where the camera's queue is known.
        last_frame_age_s: seconds since the latest frame arrived, or None before the first.
        info: what the source reported when it was last opened.
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
    published_fps: float = 0.0
    dropped_fps: float = 0.0
    last_frame_age_s: float | None = None
    info: SourceInfo | None = None


class StatusReporter:
    """Owns a camera's status: takes events, and calls back on each change of state, connection or frame size.

    Args:
        camera: name of the camera.
        on_status: called with each changed status.
        clock: monotonic seconds.
    """

    def __init__(self, camera: str, on_status: Callable[[CameraStatus], None], clock: Callable[[], float]) -> None:
        self._on_status = on_status
        self._clock = clock
        self._rate = RateMeter(clock)
        self._status = CameraStatus(camera, CameraState.CONNECTING)
        self._next_try_at: float | None = None
        self._last_frame_at: float | None = None

    @property
    def status(self) -> CameraStatus:
        """The status right now."""
        now = self._clock()
        return replace(
            self._status,
            next_try_s=None if self._next_try_at is None else max(0.0, self._next_try_at - now),
            fps=self._rate.fps,
            last_frame_age_s=None if self._last_frame_at is None else now - self._last_frame_at,
        )

    def enter(self, state: CameraState, fault: SourceFault | None = None, reason: str | None = None) -> CameraStatus:
        """Change the state and report it."""
        self._status = replace(self._status, state=state, fault=fault, reason=reason)
        if state is not CameraState.BACKOFF:
            self._next_try_at = None
        if state is not CameraState.RUNNING:
            self._rate.clear()
        return self._report()

    def opened(self, stream_epoch: int, info: SourceInfo) -> None:
        """A source was opened. Reported with its first frame."""
        self._status = replace(self._status, stream_epoch=stream_epoch, info=info)

    def frame_arrived(self, size: Size, *, first: bool) -> None:
        """A frame arrived; reported if it is the first of its stream epoch, or has a new size."""
        resized = size != self._status.size
        self._rate.count()
        self._last_frame_at = self._clock()
        self._status = replace(self._status, size=size) if resized else self._status
        if first:
            self.enter(CameraState.RUNNING)
        elif resized:
            self._report()

    def failed(self, fault: SourceFault, reason: str, failures: int, delay_s: float) -> None:
        """An attempt failed, and the next one is due in `delay_s`. A stall is reported as such before the backoff."""
        self._status = replace(self._status, attempt=failures)
        if fault is SourceFault.STALLED:
            self.enter(CameraState.STALLED, fault, reason)
        self._next_try_at = self._clock() + delay_s
        self.enter(CameraState.BACKOFF, fault, reason)

    def _report(self) -> CameraStatus:
        status = self.status
        self._on_status(status)
        return status
