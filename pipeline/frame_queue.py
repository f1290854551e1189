"""Bounded queues between cameras and the worker: one per camera, all owned by the event loop, so they need no lock.

Every frame passes through its camera's queue, so each camera's counters are kept here. They always add up:
captured = published + dropped + failed + in flight.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import anyio

from .config import CaptureMode
from .frames import Frame
from .throughput import Throughput

PAUSE_S = 2.0
"""If the event loop has not run for this many seconds, the process or the machine stood still."""
FRESH_S = 1.0
"""After that, frames of live cameras that are older than this are dropped: they show what was before."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which the event loop did not run.

    Attributes:
        duration_s: its length in seconds.
        dropped: number of waiting frames that were dropped as too old.
    """

    duration_s: float
    dropped: int


@dataclass(slots=True)
class FrameCounters:
    """Numbers of a camera's frames since the service started, by outcome.

    `nan` counts published frames with non-finite numbers. `decode_errors` counts damaged images or packets, no matter
    whether the frame failed or the decoder concealed the damage.
    """

    captured: int = 0
    published: int = 0
    dropped: int = 0
    failed: int = 0
    nan: int = 0
    decode_errors: int = 0

    @property
    def in_flight(self) -> int:
        """Number of frames that wait in the queue or are in the model."""
        return self.captured - self.published - self.dropped - self.failed


class FrameQueue:
    """The queue of one camera. Created by `FrameQueues.open`; used on the event loop's thread only.

    Attributes:
        counters: numbers of the camera's frames by outcome.
        frames_per_step: maximum number of frames taken together.
        first_epoch: number of the first connection whose frames pass through this queue; the frames of earlier
            connections are already counted.
    """

    def __init__(
        self,
        mode: CaptureMode,
        capacity: int,
        frames_per_step: int,
        counters: FrameCounters,
        wake: Callable[[], None],
        first_epoch: int,
    ) -> None:
        self.counters = counters
        self.frames_per_step = frames_per_step
        self.first_epoch = first_epoch
        self._mode = mode
        self._capacity = capacity
        self._frames: deque[Frame] = deque()
        self._wake = wake
        self._changed = anyio.Event()
        self._published = Throughput()
        self._dropped = Throughput()
        self._oldest_ns = 0

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def published_fps(self) -> float:
        """Number of frames published per second, recently."""
        return self._published.per_s

    @property
    def dropped_fps(self) -> float:
        """Number of frames dropped per second, recently."""
        return self._dropped.per_s

    @property
    def ready(self) -> int:
        """Number of waiting frames that can be taken together."""
        return min(len(self._frames), self.frames_per_step)

    @property
    def would_wait(self) -> bool:
        """Whether `put` would block."""
        return self._mode is CaptureMode.LOSSLESS and len(self._frames) >= self._capacity

    def peek(self, most: int) -> list[Frame]:
        """Return the oldest waiting frames, at most `most`, without taking them."""
        return list(islice(self._frames, most))

    async def put(self, frame: Frame) -> None:
        """Add a frame. A full live queue drops its oldest frame; a full lossless queue blocks the caller.

        If the caller is cancelled while it waits, its frame counts as dropped. So does a frame that `drop_before` would
        have dropped.
        """
        self.counters.captured += 1
        if frame.stamp.capture_monotonic_ns < self._oldest_ns:
            self._settle(dropped=1)
            return
        if self._mode is CaptureMode.LOSSLESS:
            await self._wait_for_space()
        elif len(self._frames) == self._capacity:
            self._frames.popleft()
            self._settle(dropped=1)
        self._frames.append(frame)
        self._wake()

    def resize(self, capacity: int) -> None:
        """Let this many frames wait at most. A live queue that holds more drops its oldest frames."""
        self._capacity = capacity
        while self._mode is CaptureMode.LIVE and len(self._frames) > capacity:
            self._frames.popleft()
            self._settle(dropped=1)
        self._notify()

    def take_nowait(self) -> Frame | None:
        """Take the oldest waiting frame; None if no frame waits."""
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._notify()
        return frame

    def drop_before(self, instant_ns: int) -> int:
        """Drop and count the frames that were captured before an instant, also those that are still to come.

        A lossless queue drops nothing.

        Args:
            instant_ns: `CLOCK_MONOTONIC` time in nanoseconds.

        Returns:
            number of waiting frames that were dropped.
        """
        if self._mode is CaptureMode.LOSSLESS:
            return 0
        self._oldest_ns = instant_ns
        kept = [frame for frame in self._frames if frame.stamp.capture_monotonic_ns >= instant_ns]
        dropped = len(self._frames) - len(kept)
        self._frames = deque(kept)
        self._settle(dropped=dropped)
        return dropped

    def discard(self) -> None:
        """Drop and count all waiting frames."""
        self._settle(dropped=len(self._frames))
        self._frames.clear()

    def mark_published(self, *, nan: bool = False) -> None:
        """Count a taken frame as published. `nan` says that it has non-finite numbers."""
        self.counters.published += 1
        self._published.add()
        self.counters.nan += nan
        self._notify()

    def mark_failed(self) -> None:
        """Count a taken frame as failed."""
        self.counters.failed += 1
        self._notify()

    def abandon(self) -> None:
        """Drop waiting frames, and count frames in the model as failed, because their results are no longer awaited."""
        self.discard()
        self.counters.failed += self.counters.in_flight
        self._notify()

    async def emptied(self) -> None:
        """Wait until the queue is empty (some frames may still be in the model)."""
        while self._frames:
            await self._changed.wait()

    def count_skipped(self, frames: int) -> None:
        """Count frames that were captured but dropped at the source, because they came faster than they were read."""
        self.counters.captured += frames
        self._settle(dropped=frames)

    def count_unreadable(self, frames: int) -> None:
        """Count frames that were captured but could not be decoded."""
        self.counters.captured += frames
        self.counters.failed += frames
        self._notify()

    def count_decode_error(self) -> None:
        """Count a damaged image or packet that the decoder reported."""
        self.counters.decode_errors += 1

    async def settled(self) -> None:
        """Wait until every captured frame is published, dropped or failed."""
        while self.counters.in_flight:
            await self._changed.wait()

    async def _wait_for_space(self) -> None:
        try:
            while len(self._frames) >= self._capacity:
                await self._changed.wait()
        except BaseException:  # cancelled: the frame is dropped
            self._settle(dropped=1)
            raise

    def _settle(self, dropped: int) -> None:
        self.counters.dropped += dropped
        if dropped:
            self._dropped.add(dropped)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _boot_time_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class FrameQueues:
    """The queues of all cameras, served in turn, so that a fast camera does not delay the others.

    If the process or the machine stood still, frames of live cameras from before are dropped, once `beat` or a `take`
    notices it.

    Args:
        clock: seconds since the machine started, including the time for which it was suspended.
    """

    def __init__(self, clock: Callable[[], float] = _boot_time_s) -> None:
        self._queues: dict[str, FrameQueue] = {}
        self._turn: deque[str] = deque()
        self._filled = anyio.Event()
        self._clock = clock
        self._beat_s: float | None = None
        self._pause: Pause | None = None

    def __getitem__(self, camera: str) -> FrameQueue:
        return self._queues[camera]

    def __contains__(self, camera: str) -> bool:
        return camera in self._queues

    def open(
        self,
        camera: str,
        mode: CaptureMode,
        capacity: int,
        counters: FrameCounters | None = None,
        *,
        frames_per_step: int = 1,
        first_epoch: int = 0,
    ) -> FrameQueue:
        """Open the queue of a camera.

        Args:
            camera: the camera's name; the camera must not have a queue yet.
            mode: what a full queue does.
            capacity: maximum number of waiting frames, at least 1.
            counters: counters to continue, or None to start at zero.
            frames_per_step: maximum number of frames taken together.
            first_epoch: number of the first connection whose frames pass through this queue.
        """
        if camera in self._queues:
            raise ValueError(f"camera {camera!r} already has a queue")
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        queue = FrameQueue(mode, capacity, frames_per_step, counters or FrameCounters(), self._wake, first_epoch)
        self._queues[camera] = queue
        self._turn.append(camera)
        return queue

    def close(self, camera: str) -> None:
        """Drop and count a camera's waiting frames, and remove its queue. Idempotent."""
        queue = self._queues.pop(camera, None)
        if queue is not None:
            queue.discard()
            self._turn.remove(camera)

    def beat(self) -> None:
        """Note that the event loop runs. To be called far more often than every `PAUSE_S` seconds."""
        self._notice_pause()
        self._beat_s = self._clock()

    def take_pause(self) -> Pause | None:
        """The last pause since the previous call, or None."""
        pause, self._pause = self._pause, None
        return pause

    async def take(self, most: int) -> list[Frame]:
        """Wait for frames, then take at most `most`.

        First each camera gives one frame, the longest unserved camera first; then cameras that allow several frames per
        step give further ones. The frames of a camera are consecutive and in order.
        """
        while True:
            frames = self.take_nowait(most)
            if frames:
                return frames
            self._filled = anyio.Event()
            await self._filled.wait()

    def take_nowait(self, most: int) -> list[Frame]:
        """Take frames like `take`, but return an empty list if none wait."""
        self._notice_pause()
        cameras = self._next(most)
        self._turn = deque(sorted(self._turn, key=set(cameras).__contains__))
        return [frame for camera in cameras if (frame := self._queues[camera].take_nowait()) is not None]

    def peek(self, most: int) -> list[Frame]:
        """Return the frames that `take_nowait` would take now, in no particular order, without taking them."""
        counts = Counter(self._next(most))
        return [frame for camera, count in counts.items() for frame in self._queues[camera].peek(count)]

    def _notice_pause(self) -> None:
        # Without waiting for the next beat: a `take` may be the first thing that runs after a pause.
        now_s = self._clock()
        if self._beat_s is None or now_s - self._beat_s < PAUSE_S:
            return
        instant_ns = time.monotonic_ns() - round(FRESH_S * 1e9)
        dropped = sum(queue.drop_before(instant_ns) for queue in self._queues.values())
        self._pause = Pause(now_s - self._beat_s, dropped)
        self._beat_s = now_s

    def _next(self, most: int) -> list[str]:
        # The cameras to take from, one entry per frame: one round over all cameras, then rounds over those that allow
        # several frames per step.
        cameras: list[str] = []
        depth = 0
        while len(cameras) < most:
            more = [camera for camera in self._turn if self._queues[camera].ready > depth]
            if not more:
                break
            cameras += more[: most - len(cameras)]
            depth += 1
        return cameras

    def _wake(self) -> None:
        self._filled.set()
