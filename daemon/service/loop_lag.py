"""Measures the event loop's lag: for how long other code blocks the loop."""

import time
from collections.abc import Callable


class LoopLag:
    """Measures lag with a beat that is due every `interval_s`: the time by which a beat is late is the lag.

    Args:
        interval_s: seconds between beats.
        clock: monotonic seconds.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval_s = interval_s
        self._clock = clock
        self._due: float | None = None
        self._worst_s = 0.0

    def beat(self) -> None:
        """Record that the loop runs now."""
        now = self._clock()
        if self._due is not None:
            self._worst_s = max(self._worst_s, now - self._due)
        self._due = now + self.interval_s

    @property
    def worst_ms(self) -> float:
        """The worst lag since `reset`, in milliseconds."""
        return round(1000 * self._worst_s, 2)

    def reset(self) -> None:
        """Start a new measuring interval."""
        self._worst_s = 0.0
