"""The budget of capture process starts that all cameras share: each start takes 0.4 to 0.5 s of CPU time."""

import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

TURN_S = 1.0
"""Maximum length of a turn, in seconds. A start that takes longer (a dead file server) no longer delays the others."""

REPEAT_S = 5.0
"""Seconds between process starts of cameras whose processes end repeatedly, which limits such starts to a tenth of a
core.
"""


class CaptureStarts:
    """Paces the starts of capture processes, so that cameras that run keep their share of the CPU.

    Every start waits for its turn. Starts for cameras that lose one process after another are also `REPEAT_S` apart.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turn = anyio.Lock()
        self._reserved_until = -math.inf

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn to start a process; the body lasts until it has loaded its libraries, or `TURN_S`."""
        async with self._turn:
            yield

    def reserve_s(self) -> float:
        """Reserve the next start of a camera that lost its processes repeatedly. Returns the seconds until then."""
        now = self._clock()
        self._reserved_until = max(self._reserved_until, now) + REPEAT_S
        return self._reserved_until - now
