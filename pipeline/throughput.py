"""Measures a throughput: events per second over the last seconds, even if they come in bursts."""

import time
from collections import deque
from collections.abc import Callable

_SPAN_S = 5.0
_SHORTEST_S = 1.0
"""Minimum time, in seconds, over which a rate is measured: over a shorter time it would be a guess."""


class Throughput:
    """Counts the events of the last 5 s, and computes their rate.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._counts: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, count: int = 1) -> None:
        """Count `count` events that happen now."""
        self._counts.append((self._clock(), count))
        self._sum += count
        self._forget()

    @property
    def per_s(self) -> float:
        """Events per second in the last 5 s, or since this object was made if that was later; 0 if there were none."""
        self._forget()
        return self._sum / min(_SPAN_S, max(_SHORTEST_S, self._clock() - self._began))

    def _forget(self) -> None:
        start = self._clock() - _SPAN_S
        while self._counts and self._counts[0][0] < start:
            self._sum -= self._counts.popleft()[1]
