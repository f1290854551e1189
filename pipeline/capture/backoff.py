"""Retry policy: how long to wait before a failed source is opened again."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, so that cameras that failed together do not reconnect together.

    Attributes:
        first_s: longest wait before the first retry, in seconds. This limit doubles with each retry.
        cap_s: upper bound of that limit, in seconds.
        permanent_s: shortest wait, in seconds, after a fault that an early retry cannot cure. For example,
            repeated wrong passwords lock cameras.
        healthy_s: number of seconds with frames after which the failure count is reset.
    """

    first_s: float = 0.5
    cap_s: float = 30.0
    permanent_s: float = 60.0
    healthy_s: float = 10.0

    def delay_s(self, attempt: int, permanent: bool, random: Callable[[], float]) -> float:
        """Seconds to wait after a failure.

        Args:
            attempt: number of failures in a row, from 1.
            permanent: whether an early retry cannot help.
            random: uniform in [0, 1).
        """
        longest_s = min(self.cap_s, self.first_s * 2.0 ** min(attempt - 1, 30))
        return self.permanent_s + random() * self.cap_s if permanent else random() * longest_s


class RetrySchedule:
    """Counts a camera's consecutive failures, and chooses how long to wait after each.

    Args:
        backoff: the policy.
        jitter: uniform in [0, 1).
        clock: monotonic seconds.

    Attributes:
        failures: failures in a row.
    """

    def __init__(self, backoff: Backoff, jitter: Callable[[], float], clock: Callable[[], float]) -> None:
        self.failures = 0
        self._backoff = backoff
        self._jitter = jitter
        self._clock = clock
        self._running_since: float | None = None

    def mark_opened(self) -> None:
        """The source is open; it has not delivered a frame."""
        self._running_since = None

    def mark_running(self) -> None:
        """The first frame arrived."""
        self._running_since = self._clock()

    def next_delay_s(self, *, permanent: bool) -> float:
        """Count a failure. Returns the number of seconds until the next attempt."""
        if self._running_since is not None and self._clock() - self._running_since >= self._backoff.healthy_s:
            self.failures = 0
        self._running_since = None
        self.failures += 1
        return self._backoff.delay_s(self.failures, permanent, self._jitter)
