"""Logs what goes wrong frame by frame: a few lines an interval for each camera, and a count of those left out."""

from collections.abc import Callable

import structlog

from retinad.pipeline.frames import FrameFailure
from retinad.pipeline.sources.faults import is_damage

from .rate_limit import RateLimit

_INTERVAL_S = 10.0
_BURST = 3

_log = structlog.get_logger("retinad")


def failure_log() -> Callable[[FrameFailure], None]:
    """Makes what logs frames that gave no features."""
    limit = RateLimit(_INTERVAL_S, _BURST)

    def log(failure: FrameFailure) -> None:
        stamp = failure.stamp
        suppressed = limit.admit(stamp.camera)
        if suppressed is not None:
            more = {"suppressed": suppressed} if suppressed else {}
            _log.warning(
                "a frame failed", camera=stamp.camera, source_seq=stamp.source_seq, reason=failure.reason, **more
            )

    return log


def line_log(camera: str) -> Callable[[str], None]:
    """Makes what logs a capture process's lines: damage as warnings, all else for those who debug."""
    log = _log.bind(camera=camera)
    limit = RateLimit(_INTERVAL_S, _BURST)

    def hear(line: str) -> None:
        if not is_damage(line):
            log.debug(line)
            return
        suppressed = limit.admit(camera)
        if suppressed is not None:
            log.warning(line, **({"suppressed": suppressed} if suppressed else {}))

    return hear
