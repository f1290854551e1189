"""A failed camera reconnects: soon, or rarely where a retry cannot help, and each time with a new stream epoch."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from retinad.pipeline.capture.backoff import Backoff
from retinad.pipeline.capture.camera import CameraState
from retinad.pipeline.errors import SourceFault

from ...deadlines import scaled
from .rig import QUICK, Rig, live, lossless, make_rig, play, running
from .servers import FakeServer, Handler, http_status, mjpeg, rtsp_status, silent

pytestmark = pytest.mark.anyio

MakeVideo = Callable[..., Path]
Serve = Callable[[Handler], FakeServer]
S = CameraState


def has_frame(epoch: int, seq: int) -> Callable[[Rig], bool]:
    return lambda rig: (epoch, seq) in rig.order()


def is_past(epoch: int) -> Callable[[Rig], bool]:
    return lambda rig: any(number > epoch for number, _ in rig.order())


async def test_a_good_camera_does_not_wait_for_dead_ones(serve: Serve, make_video: MakeVideo) -> None:
    dead = [make_rig(live(f"rtsp://127.0.0.1:{serve(silent).port}/x", connect_timeout_s=20)) for _ in range(3)]
    good = make_rig(live(make_video()))
    start = time.monotonic()
    async with anyio.create_task_group() as tasks:
        for rig in dead:
            tasks.start_soon(rig.camera.run)
        async with running(good):
            await good.reached(lambda rig: bool(rig.frames))
            first_s = time.monotonic() - start
            stop = time.monotonic()
            tasks.cancel_scope.cancel()
    assert first_s < scaled(2)
    assert time.monotonic() - stop < scaled(1)
    assert all(rig.states == [S.CONNECTING] for rig in dead)


async def test_a_killed_capture_comes_back_with_a_new_epoch() -> None:
    rig = make_rig(live("synthetic:?fps=100&width=64&height=48"))
    async with running(rig):
        await rig.reached(lambda rig: bool(rig.frames))
        os.kill(rig.captures[0].pid, signal.SIGKILL)
        await rig.reached(lambda rig: any(epoch == 1 for epoch, _ in rig.order()))
    assert rig.states[:5] == [S.CONNECTING, S.RUNNING, S.BACKOFF, S.CONNECTING, S.RUNNING]
    assert rig.statuses[2].fault is SourceFault.CRASHED
    assert rig.statuses[2].next_try_s is not None
    assert rig.adds_up()


async def test_a_restarted_server_is_found_again_each_time(serve: Serve) -> None:
    server = serve(mjpeg(50))
    url = f"http://127.0.0.1:{server.port}/x"
    rig = make_rig(live(url, connect_timeout_s=2, stall_timeout_s=1, queue_frames=100))  # none is dropped when busy
    gaps_s = []
    async with running(rig, keep=True):
        for _ in range(5):
            epoch = rig.camera.status.stream_epoch or 0
            await rig.reached(has_frame(epoch, 3))
            await anyio.to_thread.run_sync(server.restart)
            began = time.monotonic()
            await rig.reached(is_past(epoch))
            gaps_s.append(time.monotonic() - began)
    waits_s = [status.next_try_s or 0.0 for status in rig.statuses if status.state is S.BACKOFF]
    assert len(waits_s) >= 5
    assert max(waits_s) < QUICK.cap_s
    assert max(gaps_s) < scaled(QUICK.cap_s + 2)
    firsts = dict(reversed(rig.order()))
    assert set(firsts.values()) == {0}


async def test_a_server_that_comes_later_is_found(serve: Serve) -> None:
    """As at boot, when cameras start more slowly than the service."""
    server = serve(mjpeg(50))
    server.stop()
    rig = make_rig(live(f"http://127.0.0.1:{server.port}/x"))
    async with running(rig):
        await rig.reached(lambda rig: rig.camera.status.attempt >= 3)
        assert {status.fault for status in rig.statuses if status.state is S.BACKOFF} == {SourceFault.REFUSED}
        server.start()
        began = time.monotonic()
        await rig.reached(lambda rig: bool(rig.frames))
    assert time.monotonic() - began < scaled(QUICK.cap_s + 2)


@pytest.mark.parametrize("answer", ["401 Unauthorized", "404 Not Found"])
async def test_a_permanent_fault_is_retried_rarely(serve: Serve, answer: str) -> None:
    rig = make_rig(live(f"rtsp://u:s3cret@127.0.0.1:{serve(rtsp_status(answer)).port}/x"), backoff=Backoff())
    async with running(rig):
        await rig.reached(lambda rig: rig.camera.status.state is S.BACKOFF)
        status = rig.camera.status
    assert status.next_try_s is not None
    assert status.next_try_s > 59


async def test_a_damaged_file_is_retried_rarely(tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("hello" * 100)
    rig = make_rig(lossless(tmp_path / "text.mp4", retry=True), backoff=Backoff())
    async with running(rig):
        await rig.reached(lambda rig: rig.camera.status.state is S.BACKOFF)
    assert rig.statuses[-1].fault is SourceFault.UNREADABLE
    assert (rig.statuses[-1].next_try_s or 0) > 59


async def test_without_retry_a_failure_is_the_end() -> None:
    rig = await play(lossless("/nothere.mp4"))
    assert rig.states == [S.CONNECTING, S.FAILED]
    assert rig.statuses[-1].fault is SourceFault.MISSING
    assert "/nothere.mp4" in (rig.statuses[-1].reason or "")


async def test_a_link_is_resolved_again_at_each_connection(make_video: MakeVideo, tmp_path: Path) -> None:
    first, second, link = make_video("first.avi", frames=3), make_video("second.avi", frames=5), tmp_path / "cam"
    link.symlink_to(first)
    rig = make_rig(lossless(link, loop=0, fps=50))  # without a cap, the recorded frames would grow without bound
    async with running(rig):
        await rig.reached(lambda rig: (0, 2) in rig.order())
        (tmp_path / "new").symlink_to(second)
        (tmp_path / "new").replace(link)  # atomic: the link exists at any time
        epoch = rig.camera.status.stream_epoch or 0
        await rig.reached(lambda rig: any(number > epoch and seq == 4 for number, seq in rig.order()))


async def test_no_secret_is_shown_whatever_fails(serve: Serve) -> None:
    rigs = []
    for handler in (silent, rtsp_status("401 Unauthorized"), http_status("404 Not Found"), mjpeg(50, 2)):
        port = serve(handler).port
        for scheme in ("rtsp", "http"):
            for spelling in ("s3cret%40%2F%23", "a:s3cret", "a@s3cret/b"):
                url = f"{scheme}://admin:{spelling}@127.0.0.1:{port}/x?password=s3cret2"
                rigs.append(make_rig(live(url, connect_timeout_s=0.2, stall_timeout_s=0.2, retry=False)))
    async with anyio.create_task_group() as tasks:
        for rig in rigs:
            tasks.start_soon(rig.camera.run)
    for rig in rigs:
        assert rig.states[-1] is S.FAILED
        assert "s3cret" not in repr(rig.statuses) + repr(rig.log)
