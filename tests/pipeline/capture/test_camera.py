"""A camera plays its source according to its mode: which frames arrive, in which order, with which stamps."""

import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from retinad.pipeline.capture.camera import Camera, CameraState
from retinad.pipeline.config import CaptureMode
from retinad.pipeline.frame_queue import FrameQueues
from retinad.pipeline.frames import Frame

from .rig import live, lossless, make_rig, play, running
from .servers import FakeServer, Handler, mjpeg, read_number

pytestmark = pytest.mark.anyio

MakeVideo = Callable[..., Path]
Serve = Callable[[Handler], FakeServer]
S = CameraState


async def slow_consumer(frame: Frame) -> None:
    await anyio.sleep(0.01)


async def test_lossless_mode_delivers_every_frame_once_in_order_to_a_slow_consumer(
    make_folder: Callable[..., Path],
) -> None:
    rig = await play(lossless(make_folder(24), queue_frames=1), consume=slow_consumer)
    assert rig.order() == [(0, n) for n in range(24)]
    assert (rig.queue.counters.captured, rig.queue.counters.published) == (24, 24)
    assert rig.states == [S.CONNECTING, S.RUNNING, S.ENDED]


async def test_each_pass_through_a_file_is_a_stream_epoch(make_video: MakeVideo) -> None:
    rig = await play(lossless(make_video(frames=50), loop=2), keep=True)
    assert rig.order() == [(epoch, n) for epoch in (0, 1) for n in range(50)]
    assert [read_number(frame.pixels) for frame in rig.frames] == [*range(50), *range(50)]
    assert rig.states == [S.CONNECTING, S.RUNNING, S.RUNNING, S.ENDED]


async def test_endless_loops_do_not_end(make_video: MakeVideo) -> None:
    rig = make_rig(lossless(make_video(frames=3), loop=0))
    async with running(rig):
        await rig.reached(lambda rig: (rig.camera.status.stream_epoch or 0) >= 20)
    assert S.ENDED not in rig.states


async def test_frames_are_stamped_with_camera_and_time(make_video: MakeVideo) -> None:
    before = time.monotonic_ns(), time.time_ns()
    rig = await play(lossless(make_video(frames=5, fps=10.0)))
    stamp = rig.frames[3].stamp
    assert (stamp.camera, stamp.source_size, stamp.source_seq) == ("cam", (320, 240), 3)
    assert stamp.pts_ns == pytest.approx(300_000_000, abs=1_000_000)
    assert before[0] < stamp.capture_monotonic_ns < time.monotonic_ns()
    assert before[1] < stamp.capture_unix_ns < time.time_ns()


async def test_stream_epochs_continue_from_a_start_value() -> None:
    queue = FrameQueues().open("cam", CaptureMode.LIVE, 2)
    camera = Camera(live("synthetic:?frames=2&width=64&height=48"), queue, lambda status: None, first_epoch=7)
    status = await camera.run()
    assert (status.state, status.stream_epoch) == (S.ENDED, 7)
    frame = queue.take_nowait()
    assert frame is not None
    assert frame.stamp.stream_epoch == 7


async def test_a_slow_consumer_sees_the_newest_of_a_live_source(serve: Serve) -> None:
    rig = make_rig(live(f"http://127.0.0.1:{serve(mjpeg(20)).port}/x"))
    behind: list[int] = []

    async def slow(frame: Frame) -> None:
        behind.append(int((time.monotonic_ns() - frame.stamp.capture_monotonic_ns) / 1e9 * 20))
        await anyio.sleep(0.5)

    async with running(rig, slow, keep=True):
        await rig.reached(lambda rig: len(rig.frames) >= 6)
    assert max(behind) <= 3
    ids = [read_number(frame.pixels) for frame in rig.frames]
    passed_s = (rig.frames[-1].stamp.capture_monotonic_ns - rig.frames[1].stamp.capture_monotonic_ns) / 1e9
    assert passed_s > 0.45 * (len(ids) - 2)
    assert ids[-1] - ids[1] == pytest.approx(passed_s * 20, abs=4)
    assert rig.queue.counters.dropped > 20
    assert rig.adds_up()


async def test_the_age_of_the_last_frame_grows() -> None:
    rig = await play(lossless("synthetic:?width=64&height=48&frames=2"))
    first = rig.camera.status.last_frame_age_s
    await anyio.sleep(0.05)
    second = rig.camera.status.last_frame_age_s
    assert first is not None
    assert second is not None
    assert second - first >= 0.05


async def test_the_rate_is_measured() -> None:
    rig = make_rig(live("synthetic:?fps=50&width=64&height=48", fps=20))
    async with running(rig):
        await rig.reached(lambda rig: len(rig.frames) >= 30)
        assert rig.camera.status.fps == pytest.approx(20, rel=0.15)
    assert rig.camera.status.info is not None
    assert rig.camera.status.info.fps == 50


async def test_a_low_frame_rate_is_not_a_stall() -> None:
    rig = make_rig(live("synthetic:?width=64&height=48", fps=2, stall_timeout_s=0.2))
    async with running(rig):
        await rig.reached(lambda rig: len(rig.frames) >= 4)
    assert rig.states == [S.CONNECTING, S.RUNNING]


async def test_waiting_for_the_consumer_is_not_a_stall() -> None:
    rig = make_rig(lossless("synthetic:?width=64&height=48", queue_frames=1, stall_timeout_s=0.1))
    held: list[Frame] = []

    async def hold(frame: Frame) -> None:
        held.append(frame)
        if len(held) == 4:  # all slots
            await anyio.sleep(0.5)
            held.clear()

    async with running(rig, hold):
        await rig.reached(lambda rig: len(rig.frames) >= 6)
    assert S.STALLED not in rig.states
