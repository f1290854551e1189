"""A camera that delivers nothing new is noticed, whatever its library reports."""

from collections.abc import AsyncIterator, Callable

import anyio
import numpy as np
import pytest

from retinad.pipeline.capture.backoff import Backoff
from retinad.pipeline.capture.camera import CameraState
from retinad.pipeline.errors import SourceError, SourceFault
from retinad.pipeline.frames import Pixels

from .fakes import fake_device, noise
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


async def frozen(number: int) -> AsyncIterator[Pixels]:
    for n in range(10):
        yield noise(n)
    while True:
        await anyio.sleep(0.01)
        yield noise(0)


@pytest.mark.parametrize(("backend", "stalls"), [("v4l2", True), ("ffmpeg", False)])
async def test_a_device_that_repeats_one_image_is_stalled(backend: str, stalls: bool) -> None:
    config = live("/dev/video0", stall_timeout_s=0.3)
    rig = make_rig(config, capture=fake_device(frozen, backend))
    async with running(rig):
        await anyio.sleep(0.6)
    assert (S.STALLED in rig.states) == stalls
    if stalls:
        status = rig.statuses[rig.states.index(S.STALLED)]
        assert "repeats the same image" in (status.reason or "")


async def test_a_read_that_blocks_is_stalled() -> None:
    async def blocked(number: int) -> AsyncIterator[Pixels]:
        yield noise(number)
        await anyio.sleep(10)

    rig = make_rig(live("/dev/video0", stall_timeout_s=0.2), capture=fake_device(blocked))
    async with running(rig):
        await rig.reached(lambda rig: rig.states.count(S.RUNNING) == 2)
    assert rig.states[2] is S.STALLED


async def test_a_healthy_run_resets_the_failure_count() -> None:
    async def flaky(number: int) -> AsyncIterator[Pixels]:
        if number in (0, 1):
            raise SourceError(SourceFault.REFUSED, "no")
        for n in range(20 if number == 2 else 1):
            await anyio.sleep(0.01)
            yield noise(n)
        raise SourceError(SourceFault.REFUSED, "no")

    backoff = Backoff(first_s=0.01, cap_s=0.01, healthy_s=0.15)
    rig = make_rig(live("/dev/video0"), backoff=backoff, capture=fake_device(flaky))
    async with running(rig):
        await rig.reached(lambda rig: rig.states.count(S.BACKOFF) == 4)
    assert [status.attempt for status in rig.statuses if status.state is S.BACKOFF][:4] == [1, 2, 1, 2]


async def test_a_new_size_is_reported() -> None:
    async def growing(number: int) -> AsyncIterator[Pixels]:
        yield noise(0)
        yield np.concatenate([noise(1), noise(2)])
        await anyio.sleep_forever()

    rig = make_rig(live("/dev/video0"), capture=fake_device(growing))
    async with running(rig):
        await rig.reached(lambda rig: len(rig.frames) == 2)
    assert [status.size for status in rig.statuses] == [None, (64, 48), (64, 96)]
