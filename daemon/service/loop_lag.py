"""How late the event loop runs: the one number that tells whether something blocks it."""

import time
from collections.abc import Callable


class LoopLag:
    """Measures by a beat that should come every `interval_s`: what is more than that is lag.

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
        """Note that the loop has just run."""
        now = self._clock()
        if self._due is not None:
            self._worst_s = max(self._worst_s, now - self._due)
        self._due = now + self.interval_s

    @property
    def worst_ms(self) -> float:
        """The greatest lag since `reset`, in milliseconds."""
        return round(1000 * self._worst_s, 2)

    def reset(self) -> None:
        """Begin a new interval of measurement."""
        self._worst_s = 0.0
