"""Preprocesses the images of the next step while the GPU runs the current one."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from ..frames import Frame
from .executor import StepOutput
from .model_runner import WhileDeviceBusy

SPARE_SHARE = 0.05
"""Share of a run's expected time that is kept in reserve, in case the run ends early. The expected time is that of the
last run with the same number of frames."""

PREPARE_SHARE = 1.5
"""Time allowed for preprocessing, as a multiple of the time that the last preprocessing took."""

NAP_S = 0.001
"""Seconds between checks whether the run is over, which are made until its expected end. The run may end earlier than
expected: images of other sizes take other times, and the last run may have been delayed."""


class StepEngine(Protocol):
    """The methods of an `Engine` that a prefetcher uses."""

    def prepare(self, frames: Sequence[Frame]) -> None:
        """Preprocess the images of frames that the next step may take."""

    def step_outputs(
        self, frames: Sequence[Frame], while_device_busy: WhileDeviceBusy | None = None
    ) -> Iterable[StepOutput]:
        """Run a step."""


class Prefetcher:
    """Runs steps of an engine, and preprocesses the images of the next step shortly before each step ends.

    The prefetcher only looks at waiting frames: they are taken when their step begins, exactly as without prefetching.
    Looking earlier would waste work if a live camera's newer frame replaces one whose image is already preprocessed.
    Use the prefetcher in the engine's thread.

    Args:
        waiting: returns the frames that the next step would take, without taking them.
    """

    def __init__(self, waiting: Callable[[], Sequence[Frame]]) -> None:
        self._waiting = waiting
        self._waits_s: dict[int, float] = {}  # by number of frames: seconds from launch to end of the last such step
        self._prepare_s = 0.0

    def step(self, engine: StepEngine, frames: Sequence[Frame]) -> Iterator[StepOutput]:
        """Run a step, see `Engine.step_outputs`."""
        expected_s, launched_s = self._waits_s.get(len(frames), 0.0), 0.0

        def while_device_busy(running: Callable[[], bool]) -> None:
            nonlocal launched_s
            launched_s = time.monotonic()
            peek_s = launched_s + (1 - SPARE_SHARE) * expected_s - PREPARE_SHARE * self._prepare_s
            while running() and (left_s := peek_s - time.monotonic()) > 0:
                time.sleep(min(left_s, NAP_S))
            if running():
                self._prefetch(engine)

        yield from engine.step_outputs(frames, while_device_busy)
        if launched_s:
            self._waits_s[len(frames)] = time.monotonic() - launched_s

    def _prefetch(self, engine: StepEngine) -> None:
        frames = self._waiting()
        if frames:
            begun_s = time.monotonic()
            engine.prepare(frames)
            self._prepare_s = time.monotonic() - begun_s
