"""Captures without a process, which deliver what a script says."""

import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import numpy as np

from retinad.pipeline.capture.capture import Capture, CapturedFrame, OnLog
from retinad.pipeline.capture.keeper import StartCapture
from retinad.pipeline.capture.protocol import Ended
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.frames import Pixels
from retinad.pipeline.sources.reader import SourceInfo

Script = Callable[[int], AsyncIterator[Pixels]]
"""The frames of a connection, by its number."""


class FakeCapture(Capture):
    """A capture that delivers a script's frames, with or without timestamps."""

    def __init__(self, info: SourceInfo, frames: AsyncIterator[tuple[Pixels, int | None]]) -> None:
        self.info = info
        self.ended = None
        self._frames = frames
        self._count = 0

    @property
    def starved(self) -> bool:
        return False

    @property
    def pid(self) -> int:
        return 0

    @property
    def reusable(self) -> bool:
        return False

    async def load(self) -> None:
        pass

    async def open(self) -> None:
        pass

    async def forward_log(self) -> None:
        await anyio.sleep_forever()

    async def receive(self) -> CapturedFrame | None:
        try:
            pixels, pts_ns = await anext(self._frames)
        except StopAsyncIteration:
            self.ended = Ended(frames=self._count, skipped=0, failed=0)
            return None
        self._count += 1
        return CapturedFrame(pixels, self._count - 1, time.time_ns(), time.monotonic_ns(), pts_ns)


def fake_device(script: Script, backend: str = "v4l2") -> StartCapture:
    """A live source whose connections follow a script; the backend `v4l2` is watched for frozen images."""
    opened = itertools.count()

    async def without_times(number: int) -> AsyncIterator[tuple[Pixels, int | None]]:
        async for pixels in script(number):
            yield pixels, None

    @asynccontextmanager
    async def opener(config: CameraConfig, on_log: OnLog) -> AsyncIterator[Capture]:
        yield FakeCapture(SourceInfo(backend=backend, finite=False, live=True), without_times(next(opened)))

    return opener


def uneven_file(pts_ms: Sequence[int | None], log: Sequence[str] = ()) -> StartCapture:
    """A file of one second that announces 30 frames and has frames at these times; its decoder prints these lines."""

    async def frames() -> AsyncIterator[tuple[Pixels, int | None]]:
        for number, time_ms in enumerate(pts_ms):
            yield noise(number), None if time_ms is None else time_ms * 1_000_000

    @asynccontextmanager
    async def opener(config: CameraConfig, on_log: OnLog) -> AsyncIterator[Capture]:
        for line in log:
            on_log(line)
        yield FakeCapture(SourceInfo(backend="ffmpeg", fps=30.0, frame_count=30), frames())

    return opener


def noise(number: int) -> Pixels:
    return np.random.default_rng(number).integers(0, 255, (48, 64, 3), np.uint8)
