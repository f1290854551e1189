"""A camera can be stopped at any moment, and leaves nothing behind."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from retinad.pipeline.capture.backoff import Backoff
from retinad.pipeline.capture.camera import CameraState

from ...deadlines import scaled
from .reading import capture_processes
from .rig import Rig, live, lossless, make_rig, running
from .servers import FakeServer, Handler, http_status, mjpeg, rtsp_player, silent

pytestmark = pytest.mark.anyio

MakeVideo = Callable[..., Path]
Serve = Callable[[Handler], FakeServer]
S = CameraState


def in_state(state: CameraState) -> Callable[[Rig], bool]:
    return lambda rig: rig.camera.status.state is state


async def test_every_state_can_be_stopped(serve: Serve) -> None:
    for source, state in (
        (f"rtsp://127.0.0.1:{serve(silent).port}/x", S.CONNECTING),
        ("/nothere.mp4", S.BACKOFF),
        ("synthetic:", S.RUNNING),
    ):
        rig = make_rig(live(source), backoff=Backoff(first_s=100, cap_s=100))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.camera.run)
            await rig.reached(in_state(state))
            await anyio.sleep(0.3)
            start = time.monotonic()
            tasks.cancel_scope.cancel()
        assert time.monotonic() - start < scaled(0.5)
        assert rig.adds_up()


async def test_a_stop_at_any_moment_leaves_no_process(serve: Serve) -> None:
    """The camera is stopped while its process starts, connects, waits, backs off or is being killed."""
    urls = [f"http://127.0.0.1:{serve(handler).port}/x" for handler in (silent, mjpeg(50, 3), http_status("503 Busy"))]
    chance = random.Random(3)
    slowest_s = 0.0
    for number in range(20):
        rig = make_rig(live(urls[number % 3], connect_timeout_s=0.2))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.camera.run)
            await anyio.sleep(chance.uniform(0, 0.4))
            began = time.monotonic()
            tasks.cancel_scope.cancel()
        slowest_s = max(slowest_s, time.monotonic() - began)
        assert capture_processes() == []
        assert rig.adds_up()
    assert slowest_s < scaled(1)


async def test_a_camera_that_waits_for_a_full_queue_can_be_stopped() -> None:
    rig = make_rig(lossless("synthetic:?width=64&height=48", queue_frames=2))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.camera.run)
        await rig.reached(lambda rig: rig.queue.counters.captured == 3)
        await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    assert rig.queue.counters.dropped == 1
    assert rig.adds_up()


async def test_a_camera_that_sends_by_udp_is_asked_to_stop(serve: Serve, make_video: MakeVideo) -> None:
    """Otherwise it sends on to nobody until its session expires."""
    server = serve(rtsp_player(make_video("a.ts", frames=100, codec="mp4v").read_bytes()))
    rig = make_rig(live(f"rtsp://127.0.0.1:{server.port}/x", transport="udp"))
    async with running(rig):
        await rig.reached(lambda rig: len(rig.frames) > 5)
        began = time.monotonic()
    assert time.monotonic() - began < scaled(1)
    assert server.asked_for("TEARDOWN")


async def test_a_camera_that_is_opened_again_is_asked_to_stop_first(serve: Serve, make_video: MakeVideo) -> None:
    server = serve(rtsp_player(make_video("a.ts", frames=100, codec="mp4v").read_bytes(), packets=300))
    rig = make_rig(live(f"rtsp://127.0.0.1:{server.port}/x", transport="udp", stall_timeout_s=1))
    async with running(rig):
        await rig.reached(lambda rig: rig.camera.status.attempt >= 1)
    assert server.asked_for("TEARDOWN")
    order = [text.split()[0] for text in server.requests if text]
    assert order.index("TEARDOWN") > order.index("PLAY")
