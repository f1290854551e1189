"""Logs the cameras' state changes, damaged input and failed frames, at a rate that does not flood the log."""

import logging
import re

import structlog

from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.capture.faults import is_damage
from retinad.pipeline.frames import FrameFailure

from ..logs.rate_limit import RateLimit
from .state import full_reason

CAMERA_EVENTS = {
    CameraState.CONNECTING: "camera connecting",
    CameraState.RUNNING: "camera connected",
    CameraState.STALLED: "camera stalled",
    CameraState.BACKOFF: "camera retrying",
    CameraState.ENDED: "camera source ended",
    CameraState.FAILED: "camera failed",
}
"""The name of the log event for each state."""

_INTERVAL_S = 10.0
_DAMAGED = 3
"""Maximum number of damaged images or packets logged per camera and interval."""
_NUMBERS = re.compile(r"\d+")
_MILESTONES = frozenset({10, 100, 1000, 10_000, 100_000})

_log = structlog.get_logger("retinad")


class CameraLog:
    """Logs one camera's states. Warns of a new problem, and of its 10th, 100th, ... repetition."""

    def __init__(self, camera: str) -> None:
        self._log = _log.bind(camera=camera)
        self._before: CameraStatus | None = None
        self._problem: str | None = None
        self._notes: set[str] = set()
        self._limit = RateLimit(_INTERVAL_S, _DAMAGED)

    def state(self, status: CameraStatus) -> None:
        """Log a change of state and, for a newly opened source, how it deviates from its configuration."""
        self._log.log(self._level(status), CAMERA_EVENTS[status.state], **log_fields(status))
        self._before = status
        for note in () if status.info is None else status.info.notes:
            if note not in self._notes:  # a source that is opened again says the same
                self._notes.add(note)
                self._log.warning(note)

    def line(self, line: str) -> None:
        """Log a line that the capture process printed."""
        if not is_damage(line):
            self._log.debug(line)
        elif (more := self._limit.admit("damage")) is not None:
            self._log.warning(line, **similar(more))

    def close(self) -> None:
        """Log how many damage messages were suppressed. To be called when the camera has ended or was stopped."""
        suppressed = sum(self._limit.take_suppressed().values())
        if suppressed:
            self._log.warning("more damaged input", lines=suppressed)

    def _level(self, status: CameraStatus) -> int:
        reason = _NUMBERS.sub("#", status.reason or "")  # FFmpeg's timeout messages contain the elapsed nanoseconds
        known, is_known = self._problem, reason == self._problem
        match status.state:
            case CameraState.RUNNING:
                self._problem = None
                return logging.DEBUG if self._is_next_pass(status) else logging.INFO
            case CameraState.BACKOFF | CameraState.STALLED:
                self._problem = reason
                return logging.DEBUG if is_known and status.attempt not in _MILESTONES else logging.WARNING
            case CameraState.CONNECTING:
                return logging.INFO if known is None else logging.DEBUG
            case CameraState.FAILED:
                return logging.ERROR
            case CameraState.ENDED:
                return logging.DEBUG  # "camera finished" follows, with the counters, once its last frame is out

    def _is_next_pass(self, status: CameraStatus) -> bool:
        # A short looped source would fill the log.
        before = self._before
        return before is not None and (before.state, before.size) == (CameraState.RUNNING, status.size)


class FailureLog:
    """Logs failed frames; for each camera and reason, one line in each interval."""

    def __init__(self) -> None:
        self._limit = RateLimit(_INTERVAL_S)

    def __call__(self, failure: FrameFailure) -> None:
        """Log a failure, unless the same camera failed for the same reason a moment ago."""
        stamp = failure.stamp
        suppressed = self._limit.admit(f"{stamp.camera} {_NUMBERS.sub('#', failure.reason)}")
        if suppressed is not None:
            _log.warning(
                "frame failed",
                camera=stamp.camera,
                stream_epoch=stamp.stream_epoch,
                source_seq=stamp.source_seq,
                reason=failure.reason,
                **similar(suppressed),
            )


def similar(count: int) -> dict[str, int]:
    """The field of a log line that says how many similar ones were not logged before it; none if there were none."""
    return {"similar_not_logged": count} if count else {}


def log_fields(status: CameraStatus) -> dict[str, object]:
    """The fields of a log line about a camera's state, without those whose values are unknown."""
    fields: dict[str, object] = {
        "reason": full_reason(status),
        "attempt": status.attempt or None,
        "next_try_s": None if status.next_try_s is None else round(status.next_try_s, 1),
        "stream_epoch": status.stream_epoch,
        "size": status.size and "{}x{}".format(*status.size),
    }
    return {key: value for key, value in fields.items() if value is not None}
