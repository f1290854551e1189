"""Keeps repeated events from flooding the log: admits a few per key and interval, and counts the rest."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

_MOST_KEYS = 512


@dataclass(slots=True)
class _Window:
    began: float
    admitted: int = 0
    suppressed: int = 0


class RateLimit:
    """Admits the first `burst` events of each key in an interval. Thread-safe.

    Args:
        interval_s: length of the interval in seconds, from the first admitted event.
        burst: maximum number of events with the same key that are admitted per interval.
        clock: monotonic seconds.
    """

    def __init__(self, interval_s: float, burst: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._burst = burst
        self._clock = clock
        self._windows: OrderedDict[str, _Window] = OrderedDict()
        self._lock = threading.Lock()

    def admit(self, key: str) -> int | None:
        """Ask to log an event.

        Returns:
            None to suppress it; otherwise the number of events of this key suppressed since the last admitted one.
        """
        with self._lock:
            now = self._clock()
            window = self._windows.get(key)
            suppressed = window.suppressed if window else 0
            if window is None or now - window.began >= self._interval_s:
                window = self._windows[key] = _Window(now)
            self._windows.move_to_end(key)
            if len(self._windows) > _MOST_KEYS:
                self._windows.popitem(last=False)
            if window.admitted >= self._burst:
                window.suppressed += 1
                return None
            window.admitted += 1
            return suppressed

    def take_suppressed(self) -> dict[str, int]:
        """Return and clear the number of suppressed events not reported yet, by key, for a last line before the end."""
        with self._lock:
            counts = {key: window.suppressed for key, window in self._windows.items() if window.suppressed}
            self._windows.clear()
            return counts
