"""A camera that says nothing new is found out, whatever its library says of it."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import numpy as np
import pytest

from retinad.pipeline.capture.backoff import Backoff
from retinad.pipeline.capture.camera import CameraState
from retinad.pipeline.capture.capture import Captured, OnLog
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.errors import SourceError, SourceFault
from retinad.pipeline.sources.reader import SourceInfo

from .rig import live, make_rig, running
from .servers import FakeServer, Handler, mjpeg

pytestmark = pytest.mark.anyio

Serve = Callable[[Handler], FakeServer]
S = CameraState


async def test_silence_is_a_stall(serve: Serve) -> None:
    server = serve(mjpeg(50, 5, stall=True))
    rig = make_rig(live(f"http://127.0.0.1:{server.port}/x", stall_timeout_s=0.5))
    async with running(rig):
        await rig.reached(lambda rig: rig.states.count(S.RUNNING) == 2)
    assert rig.states[:5] == [S.CONNECTING, S.RUNNING, S.STALLED, S.BACKOFF, S.CONNECTING]
    assert rig.statuses[3].fault is SourceFault.STALLED


class FakeCapture:
    """A capture that does what its script says."""

    def __init__(self, info: SourceInfo, script: Callable[[int], AsyncIterator[np.ndarray]], number: int) -> None:
        self.info = info
        self.ended = None
        self.starved = False
        self.pid = 0
        self._frames = script(number)
        self._count = -1

    async def receive(self) -> Captured | None:
        pixels = await anext(self._frames)
        self._count += 1
        return Captured(pixels, self._count, time.time_ns(), time.monotonic_ns(), None)


def fake_device(script: Callable[[int], AsyncIterator[np.ndarray]], backend: str = "v4l2") -> Callable[..., object]:
    opened = iter(range(1000))

    @asynccontextmanager
    async def opener(config: CameraConfig, on_log: OnLog) -> AsyncIterator[FakeCapture]:
        yield FakeCapture(SourceInfo(backend=backend, finite=False, live=True), script, next(opened))

    return opener


def noise(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, (48, 64, 3), np.uint8)


async def frozen(number: int) -> AsyncIterator[np.ndarray]:
    for n in range(10):
        yield noise(n)
    while True:
        await anyio.sleep(0.01)
        yield noise(0)


@pytest.mark.parametrize(("backend", "stalls"), [("v4l2", True), ("ffmpeg", False)])
async def test_a_device_that_repeats_one_picture_is_stalled(backend: str, stalls: bool) -> None:
    config = live("/dev/video0", stall_timeout_s=0.3)
    rig = make_rig(config, capture=fake_device(frozen, backend))  # type: ignore[arg-type]
    async with running(rig):
        await anyio.sleep(0.6)
    assert (S.STALLED in rig.states) == stalls
    if stalls:
        status = rig.statuses[rig.states.index(S.STALLED)]
        assert "the very same picture" in (status.reason or "")


async def test_a_read_that_blocks_is_stalled() -> None:
    async def blocked(number: int) -> AsyncIterator[np.ndarray]:
        yield noise(number)
        await anyio.sleep(10)

    rig = make_rig(live("/dev/video0", stall_timeout_s=0.2), capture=fake_device(blocked))  # type: ignore[arg-type]
    async with running(rig):
        await rig.reached(lambda rig: rig.states.count(S.RUNNING) == 2)
    assert rig.states[2] is S.STALLED


async def test_a_healthy_run_forgives_earlier_failures() -> None:
    async def flaky(number: int) -> AsyncIterator[np.ndarray]:
        if number in (0, 1):
            raise SourceError(SourceFault.REFUSED, "no")
        for n in range(20 if number == 2 else 1):
            await anyio.sleep(0.01)
            yield noise(n)
        raise SourceError(SourceFault.REFUSED, "no")

    backoff = Backoff(first_s=0.01, cap_s=0.01, healthy_s=0.15)
    rig = make_rig(live("/dev/video0"), backoff=backoff, capture=fake_device(flaky))  # type: ignore[arg-type]
    async with running(rig):
        await rig.reached(lambda rig: rig.states.count(S.BACKOFF) == 4)
    assert [status.attempt for status in rig.statuses if status.state is S.BACKOFF][:4] == [1, 2, 1, 2]


async def test_a_new_size_is_told() -> None:
    async def growing(number: int) -> AsyncIterator[np.ndarray]:
        yield noise(0)
        yield np.concatenate([noise(1), noise(2)])
        await anyio.sleep_forever()

    rig = make_rig(live("/dev/video0"), capture=fake_device(growing))  # type: ignore[arg-type]
    async with running(rig):
        await rig.reached(lambda rig: len(rig.frames) == 2)
    assert [status.size for status in rig.statuses] == [None, (64, 48), (64, 96)]
