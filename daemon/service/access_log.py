"""Logs refused subscribers and unreadable keys, at a limited rate, so that strangers cannot flood the log."""

import anyio
import structlog

from retinad.pipeline.publish.publisher import Publisher
from retinad.pipeline.publish.refusals import Refusal

from ..logs.rate_limit import RateLimit
from .camera_log import similar

_INTERVAL_S = 10.0
_KIND_INTERVAL_S = 300.0
_LINES = 10
"""Maximum number of refusals logged per interval, for all peers together."""
_KEYS_INTERVAL_S = 60.0
_LOOK_S = 0.25

_log = structlog.get_logger("retinad")


class AccessLog:
    """Logs each kind of refusal at most once in 5 minutes, and at most ten refusals of all kinds in 10 s."""

    def __init__(self) -> None:
        self._each = RateLimit(_KIND_INTERVAL_S)
        self._all = RateLimit(_INTERVAL_S, _LINES)
        self._keys = RateLimit(_KEYS_INTERVAL_S)
        self._keys_error: str | None = None

    def refused(self, refusal: Refusal, times: int) -> None:
        """Log that a subscriber was refused, unless a refusal of the same kind was logged a moment ago."""
        earlier = self._each.admit(f"{refusal.address} {refusal.key} {refusal.reason}")
        if earlier is None or (others := self._all.admit("all")) is None:
            return
        fields = {"key": refusal.key} if refusal.key else {}
        more, suppressed = similar(times - 1 + earlier), {"others_not_logged": others} if others else {}
        _log.warning(
            "subscriber refused", address=refusal.address, reason=refusal.reason, **fields, **more, **suppressed
        )

    def keys(self, problem: str | None) -> None:
        """Log a problem with the authorized keys: at once, then every minute, and once more when it is solved."""
        if problem is not None and self._keys.admit(problem) is not None:
            _log.error("authorized keys not readable", problem=problem)
        if problem is None and self._keys_error is not None:
            _log.info("authorized keys readable again")
            self._keys = RateLimit(_KEYS_INTERVAL_S)
        self._keys_error = problem


async def log_access(publisher: Publisher) -> None:
    """Log refused subscribers and unreadable keys, forever."""
    log = AccessLog()
    while True:
        for refusal, times in publisher.take_refusals().items():
            log.refused(refusal, times)
        log.keys(publisher.keys_error)
        await anyio.sleep(_LOOK_S)
