"""Has the pictures of the next step fitted while the device still runs this one."""

import time
from collections.abc import Callable, Iterator, Sequence

from ..frames import Frame
from .engine import Engine
from .executor import StepOutput

SPARE_SHARE = 0.05
"""Of a run: how much shorter than the last one of as many frames it may turn out."""

SPARE_FITTINGS = 1.5
"""How long the fitting may take, in times of the last one."""

NAP_S = 0.001
"""Time between looks at whether a run is over, until it is expected to be. How long the last one took is no guide:
pictures of other sizes take other times, and that one may have been held up."""


class Prefetcher:
    """Runs steps of an engine, and looks at the frames that wait for the next one shortly before each ends.

    It only looks: frames are taken when their step begins, as they would be without it. Looking early would be work for
    nothing where a live camera's newer frame comes in place of one that was looked at. Use it in the engine's thread.

    Args:
        waiting: gives the frames that the next step would take, and leaves them where they are.
    """

    def __init__(self, waiting: Callable[[], Sequence[Frame]]) -> None:
        self._waiting = waiting
        self._waits_s: dict[int, float] = {}  # of the last step with so many frames, from its launch to its end
        self._fitting_s = 0.0

    def step(self, engine: Engine, frames: Sequence[Frame]) -> Iterator[StepOutput]:
        """See `Engine.step_outputs`."""
        expected_s, launched_s = self._waits_s.get(len(frames), 0.0), 0.0

        def while_device_busy(running: Callable[[], bool]) -> None:
            nonlocal launched_s
            launched_s = time.monotonic()
            look_s = launched_s + (1 - SPARE_SHARE) * expected_s - SPARE_FITTINGS * self._fitting_s
            while running() and (left_s := look_s - time.monotonic()) > 0:
                time.sleep(min(left_s, NAP_S))
            if running():
                self._prefetch(engine)

        yield from engine.step_outputs(frames, while_device_busy)
        if launched_s:
            self._waits_s[len(frames)] = time.monotonic() - launched_s

    def _prefetch(self, engine: Engine) -> None:
        frames = self._waiting()
        if frames:
            begun_s = time.monotonic()
            engine.prepare(frames)
            self._fitting_s = time.monotonic() - begun_s
