"""Runs steps: adds frames to their streams, and runs every stream that is ready.

A step takes several rounds if a camera has more frames than fit in one forward pass. A round takes several forward
passes if images differ in size or `max_batch` is exceeded. Each round runs at most one chunk of each stream.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np

from ..config import ResizeMode
from ..frames import Frame, FrameStamp, Outcome, OutputKind, Size
from .executor import BatchExecutor, StepOutput
from .images import ImagePreprocessor
from .model_runner import FrameChunk, WhileDeviceBusy
from .preprocess import ResizeGeometry
from .stream import Stream
from .streams import StreamRegistry
from .view import StreamView

PASSES = 2
"""Number of warm-up passes per size: a stream's first frame and a later one. The first pass may compile kernels."""

OnPass = Callable[[int, int, float], None]
"""A function that is called after each pass of a warm-up, with its number from 1, the total number, and its seconds."""

GeometryOf = Callable[[Size, ResizeMode], ResizeGeometry]
"""A function that computes how frames of a source size are fitted to the model; raises ValueError if that fails."""


def ignore_pass(number: int, total: int, took_s: float) -> None:
    """Ignore a pass."""


class Stepper:
    """Moves frames through their streams into the model. `Engine.step_outputs` documents its behaviour.

    Args:
        streams: the open streams.
        preprocessor: makes the model's images.
        executor: runs batches.
        geometry_of: computes how frames are fitted to the model.
    """

    def __init__(
        self,
        streams: StreamRegistry,
        preprocessor: ImagePreprocessor,
        executor: BatchExecutor,
        geometry_of: GeometryOf,
    ) -> None:
        self._streams = streams
        self._preprocessor = preprocessor
        self._executor = executor
        self._geometry_of = geometry_of

    def prepare(self, frames: Sequence[Frame]) -> None:
        """See `Engine.prepare`."""
        geometries: list[tuple[Frame, ResizeGeometry, StreamView | None]] = []
        for frame in frames:
            stream = self._streams.get(frame.stamp.camera)
            if stream is not None:
                with suppress(ValueError):
                    geometry = self._geometry_of(frame.stamp.source_size, stream.resize)
                    geometries.append((frame, geometry, stream.view))
        self._preprocessor.prefetch(geometries)

    def step(self, frames: Sequence[Frame], while_device_busy: WhileDeviceBusy | None) -> Iterator[StepOutput]:
        """See `Engine.step_outputs`."""
        started_ns = time.monotonic_ns()
        by_camera: dict[str, deque[Frame]] = {}
        for frame in frames:
            by_camera.setdefault(frame.stamp.camera, deque()).append(frame)
        while any(by_camera.values()):
            queues = [queue for queue in by_camera.values() if queue]
            yield from self._round(queues, started_ns, while_device_busy)

    def flush(self, stream: Stream) -> list[Outcome]:
        """Run a stream's waiting frames."""
        return [outcome for result in self._release(stream, time.monotonic_ns()) for outcome in result.outcomes]

    def warm_up(self, sizes: Iterable[Size], outputs: frozenset[OutputKind], on_pass: OnPass) -> float:
        """See `Engine.warm_up`. Returns the seconds that a pass takes after the warm-up, for the slowest size."""
        modes = {stream.resize for stream in self._streams} or {ResizeMode.CROP}
        geometries = {
            geometry.model_size: geometry
            for size in sizes
            for geometry in (self._geometry_of(size, mode) for mode in sorted(modes))
        }
        done, total = itertools.count(1), PASSES * len(geometries)

        def report(took_s: float) -> None:
            on_pass(next(done), total, took_s)

        return max((self._warm_up_size(geometry, outputs, report) for geometry in geometries.values()), default=0.0)

    def _round(
        self, queues: Sequence[deque[Frame]], started_ns: int, while_device_busy: WhileDeviceBusy | None
    ) -> Iterator[StepOutput]:
        # Takes one chunk of frames from each camera's queue, and runs the chunks.
        streams: list[Stream] = []
        for queue in queues:
            stream = self._streams.get(queue[0].stamp.camera)
            if stream is not None:
                streams.append(stream)
            while queue and not (stream is not None and stream.full):
                yield from self._add(queue.popleft(), started_ns)
        renewal_ns = time.monotonic_ns()
        self._executor.renew([stream for stream in streams if stream.over and stream.waiting], started_ns)
        started_ns += time.monotonic_ns() - renewal_ns  # the renewal counts as time that the frames wait in a queue
        ready = [FrameChunk(stream, stream.take()) for stream in streams if stream.ready]
        yield from self._executor.run(ready, started_ns, last=not any(queues), while_device_busy=while_device_busy)

    def _add(self, frame: Frame, started_ns: int) -> Iterator[StepOutput]:
        # Adds a frame to its stream. Yields the frame's failure, if it cannot be added, or the results of earlier
        # frames that cannot wait any longer.
        stamp, begun_ns = frame.stamp, time.monotonic_ns()
        stream = self._streams.get(stamp.camera)
        if stream is None:
            yield StepOutput(self._executor.fail([stamp], "the frame's camera has no stream"))
            return
        try:
            geometry = self._geometry_of(stamp.source_size, stream.resize)
            image = self._preprocessor.image_of(frame, geometry, stream.view)
        except (ValueError, RuntimeError) as error:  # RuntimeError: torch's, out of memory among them
            yield StepOutput(self._executor.fail_with([stamp], error))
            return
        preprocess_us = (time.monotonic_ns() - begun_ns) // 1000
        if stream.breaks_with(stamp):
            yield from self._release(stream, started_ns)
            stream.restart()
        stream.add(stamp, image, geometry, preprocess_us)

    def _release(self, stream: Stream, started_ns: int) -> Iterator[StepOutput]:
        if stream.waiting:
            yield from self._executor.run([FrameChunk(stream, stream.take())], started_ns)

    def _warm_up_size(
        self, geometry: ResizeGeometry, outputs: frozenset[OutputKind], report: Callable[[float], None]
    ) -> float:
        stream = self._streams.warm_up_stream(outputs)
        stamp = FrameStamp(stream.camera, 0, 0, 0, 0, None, geometry.source_size)
        width, height = geometry.source_size
        blank = Frame(stamp, np.zeros((height, width, 3), np.uint8))
        try:
            return min(self._timed_pass(stream, blank, geometry, report) for _ in range(PASSES))
        finally:
            stream.free()

    def _timed_pass(
        self, stream: Stream, frame: Frame, geometry: ResizeGeometry, report: Callable[[float], None]
    ) -> float:
        begun_s = time.monotonic()
        stream.add(frame.stamp, self._preprocessor.make(frame.pixels, geometry), geometry, preprocess_us=0)
        self._executor.warm_up(FrameChunk(stream, stream.take()))
        took_s = time.monotonic() - begun_s
        report(took_s)
        return took_s
