"""Measures arriving frames: their rate, and for how long the image has not changed."""

from collections import deque
from collections.abc import Callable

from ..frames import Pixels

_SPAN_S = 5.0
_STRIDE = 16


class RateMeter:
    """Measures frames per second from the times of arrival.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._arrivals: deque[float] = deque(maxlen=128)

    def count(self) -> None:
        """A frame arrived."""
        self._arrivals.append(self._clock())

    @property
    def fps(self) -> float:
        """The rate over the last 5 s or 128 frames; 0 with fewer than two frames."""
        start = self._clock() - _SPAN_S
        while self._arrivals and self._arrivals[0] < start:
            self._arrivals.popleft()
        if len(self._arrivals) < 2:
            return 0.0
        return (len(self._arrivals) - 1) / max(self._arrivals[-1] - self._arrivals[0], 1e-9)

    def clear(self) -> None:
        """Forget all frames."""
        self._arrivals.clear()


class FreezeWatch:
    """Measures for how long a device has repeated the same image, as unplugged ones do. Sensor noise never repeats.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sample = b""
        self._changed_at = clock()

    def frozen_s(self, pixels: Pixels) -> float:
        """Compare every 16th pixel of a frame [H, W, 3]. Returns the seconds since the image changed."""
        sample = pixels[::_STRIDE, ::_STRIDE].tobytes()
        if sample != self._sample:
            self._sample = sample
            self._changed_at = self._clock()
        return self._clock() - self._changed_at
