"""A camera's states: every way in, every way out, and counters that add up in all of them."""

import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import numpy as np
import pytest

from retinad.pipeline.config import CameraConfig, CaptureMode
from retinad.pipeline.errors import SourceError, SourceFault
from retinad.pipeline.frame_queue import FrameCounters, FrameQueues
from retinad.pipeline.frames import Frame
from retinad.pipeline.sources.backoff import Backoff
from retinad.pipeline.sources.camera import Camera, CameraState
from retinad.pipeline.sources.capture import Captured, OnLog
from retinad.pipeline.sources.messages import Ended, SourceInfo

from .reading import capture_processes
from .rig import QUICK, Rig, live, lossless, make_rig, play, running
from .servers import FakeServer, Handler, http_status, mjpeg, read_number, rtsp_status, silent

pytestmark = pytest.mark.anyio

MakeVideo = Callable[..., Path]
Serve = Callable[[Handler], FakeServer]
S = CameraState


def adds_up(rig: Rig) -> bool:
    counters = rig.queue.counters
    taken = counters.in_flight - len(rig.queue)
    return taken in (0, 1)  # the consumer may have been stopped with a frame in hand


async def dawdle(frame: Frame) -> None:
    await anyio.sleep(0.01)


async def test_lossless_gives_every_frame_once_in_order_to_a_slow_consumer(make_folder: Callable[..., Path]) -> None:
    rig = await play(lossless(make_folder(24), queue_frames=1), consume=dawdle)
    assert rig.order() == [(0, n) for n in range(24)]
    assert (rig.queue.counters.captured, rig.queue.counters.published) == (24, 24)
    assert rig.states == [S.CONNECTING, S.RUNNING, S.ENDED]


async def test_each_pass_through_a_file_is_an_epoch(make_video: MakeVideo) -> None:
    rig = await play(lossless(make_video(frames=50), loop=2), keep=True)
    assert rig.order() == [(epoch, n) for epoch in (0, 1) for n in range(50)]
    assert [read_number(frame.pixels) for frame in rig.frames] == [*range(50), *range(50)]
    assert rig.states == [S.CONNECTING, S.RUNNING, S.RUNNING, S.ENDED]


async def test_endless_loops_do_not_end(make_video: MakeVideo) -> None:
    rig = make_rig(lossless(make_video(frames=3), loop=0))
    async with running(rig):
        await rig.reached(lambda rig: (rig.camera.status.stream_epoch or 0) >= 20)
    assert S.ENDED not in rig.states


async def test_frames_say_where_and_when_they_were_captured(make_video: MakeVideo) -> None:
    before = time.monotonic_ns(), time.time_ns()
    rig = await play(lossless(make_video(frames=5, fps=10.0)))
    stamp = rig.frames[3].stamp
    assert (stamp.camera, stamp.source_size, stamp.source_seq) == ("cam", (320, 240), 3)
    assert stamp.pts_ns == pytest.approx(300_000_000, abs=1_000_000)
    assert before[0] < stamp.capture_monotonic_ns < time.monotonic_ns()
    assert before[1] < stamp.capture_unix_ns < time.time_ns()


async def test_epochs_go_on_from_a_start_value() -> None:
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
    assert adds_up(rig)


async def test_unreadable_pictures_count_as_failed(make_folder: Callable[..., Path]) -> None:
    folder = make_folder(6)
    for name in ("f0.png", "f3.png", "f5.png"):
        (folder / name).write_text("no picture")
    rig = await play(lossless(folder))
    assert rig.order() == [(0, 1), (0, 2), (0, 4)]
    counters = rig.queue.counters
    assert (counters.captured, counters.published, counters.failed, counters.in_flight) == (6, 3, 3, 0)
    assert sum("left out" in line for line in rig.log) == 3


@pytest.mark.parametrize("loop", [0, 1])
async def test_a_source_without_one_readable_frame_fails_rather_than_spins(tmp_path: Path, loop: int) -> None:
    (tmp_path / "f.png").write_text("no picture")
    rig = await play(lossless(tmp_path, loop=loop))
    assert (rig.statuses[-1].state, rig.statuses[-1].fault) == (S.FAILED, SourceFault.UNREADABLE)
    assert rig.queue.counters.failed == rig.queue.counters.captured == 1


async def test_a_damaged_video_goes_on_and_counts_what_it_lost(make_video: MakeVideo) -> None:
    path = make_video(frames=50)
    data = bytearray(path.read_bytes())
    for place in range(len(data) // 3, 2 * len(data) // 3, 97):
        data[place] = 255 - data[place]
    path.write_bytes(data)
    rig = await play(lossless(path), keep=True)
    counters = rig.queue.counters
    assert counters.captured == counters.published + counters.failed
    assert 40 <= counters.captured <= 50, "frames whose very header is damaged are not seen by anyone"
    assert 5 <= counters.failed <= 25
    assert rig.queue.counters.decode_errors > 0
    assert read_number(rig.frames[-1].pixels) == 49


async def test_damage_that_a_decoder_conceals_is_counted(make_video: MakeVideo) -> None:
    """Such frames come as if nothing had happened: `decode_errors` alone tells."""
    path = make_video("a.ts", frames=60, codec="mp4v")
    data = bytearray(path.read_bytes())
    chance = np.random.default_rng(1)
    for place in range(len(data) // 3, 2 * len(data) // 3, 7):
        data[place] = chance.integers(256)
    path.write_bytes(data)
    rig = await play(lossless(path), keep=True)
    assert 30 <= len(rig.frames) <= 60
    assert rig.queue.counters.decode_errors > 0
    assert read_number(rig.frames[-1].pixels) == 59
    assert rig.queue.counters.captured == rig.queue.counters.published + rig.queue.counters.failed


@pytest.mark.parametrize(("name", "codec"), [("a.avi", "MJPG"), ("a.mkv", "mp4v")])
async def test_an_early_end_is_told(make_video: MakeVideo, name: str, codec: str) -> None:
    path = make_video(name, frames=50, codec=codec)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    rig = await play(lossless(path))
    assert rig.statuses[-1].state is S.ENDED
    assert 20 <= len(rig.frames) < 50
    captured = rig.queue.counters.captured
    assert rig.statuses[-1].reason == f"it ended after {captured} of 50 frames"


@pytest.mark.parametrize(
    ("pts_ms", "damage", "reason"),
    [
        ([0, 33, 500, 967], [], None),  # uneven times: 30 frames are its length and rate, not a count
        ([0, 33, 500, 967], ["[OPENCV:FFMPEG:24] Packet corrupt"], "it ended after 4 of 30 frames"),
        ([0, 33, 67, 100], [], "it ended after 4 of 30 frames"),
        ([None, None, None, None], [], "it ended after 4 of 30 frames"),
    ],
)
async def test_only_a_source_that_ends_too_soon_or_damaged_ended_early(
    pts_ms: list[int | None], damage: list[str], reason: str | None
) -> None:
    @asynccontextmanager
    async def opener(config: CameraConfig, on_log: OnLog) -> AsyncIterator[object]:
        for line in damage:
            on_log(line)
        yield UnevenCapture(pts_ms)

    rig = make_rig(lossless("/uneven.mkv"), capture=opener)
    async with running(rig):
        await rig.reached(lambda rig: rig.camera.status.state is S.ENDED)
    assert rig.camera.status.reason == reason


async def test_damage_is_counted_on_when_a_camera_is_made_anew(make_folder: Callable[..., Path]) -> None:
    """As a reload does with a camera that it changes."""
    folder = make_folder(2)
    (folder / "f0.png").write_text("no picture")
    counters = FrameCounters()
    for total in (1, 2):
        queue = FrameQueues().open("cam", CaptureMode.LIVE, 2, counters)
        await Camera(live(folder), queue, lambda status: None).run()
        assert counters.decode_errors == total


async def test_the_age_of_the_last_frame_grows() -> None:
    rig = await play(lossless("synthetic:?width=64&height=48&frames=2"))
    first = rig.camera.status.last_frame_age_s
    await anyio.sleep(0.05)
    second = rig.camera.status.last_frame_age_s
    assert first is not None
    assert second is not None
    assert second - first >= 0.05


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
    assert first_s < 2
    assert time.monotonic() - stop < 1
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
    assert adds_up(rig)


async def test_a_restarted_server_is_found_again_each_time(serve: Serve) -> None:
    server = serve(mjpeg(50))
    url = f"http://127.0.0.1:{server.port}/x"
    rig = make_rig(live(url, connect_timeout_s=2, stall_timeout_s=1, queue_frames=100))  # none is dropped when busy
    gaps_s = []
    async with running(rig, keep=True):
        for _ in range(5):
            epoch = rig.camera.status.stream_epoch or 0
            await rig.reached(lambda rig, epoch=epoch: (epoch, 3) in rig.order())
            await anyio.to_thread.run_sync(server.restart)
            began = time.monotonic()
            await rig.reached(lambda rig, epoch=epoch: any(e > epoch for e, _ in rig.order()))
            gaps_s.append(time.monotonic() - began)
    waits_s = [status.next_try_s or 0.0 for status in rig.statuses if status.state is S.BACKOFF]
    assert len(waits_s) >= 5
    assert max(waits_s) < QUICK.cap_s
    assert max(gaps_s) < QUICK.cap_s + 2
    firsts = dict(reversed(rig.order()))
    assert set(firsts.values()) == {0}


async def test_a_server_that_comes_later_is_found(serve: Serve) -> None:
    """As at boot, when cameras are slower than the service."""
    server = serve(mjpeg(50))
    server.stop()
    rig = make_rig(live(f"http://127.0.0.1:{server.port}/x"))
    async with running(rig):
        await rig.reached(lambda rig: rig.camera.status.attempt >= 3)
        assert {status.fault for status in rig.statuses if status.state is S.BACKOFF} == {SourceFault.REFUSED}
        server.start()
        began = time.monotonic()
        await rig.reached(lambda rig: bool(rig.frames))
    assert time.monotonic() - began < QUICK.cap_s + 2


async def test_silence_is_a_stall(serve: Serve) -> None:
    server = serve(mjpeg(50, 5, stall=True))
    rig = make_rig(live(f"http://127.0.0.1:{server.port}/x", stall_timeout_s=0.5))
    async with running(rig):
        await rig.reached(lambda rig: rig.states.count(S.RUNNING) == 2)
    assert rig.states[:5] == [S.CONNECTING, S.RUNNING, S.STALLED, S.BACKOFF, S.CONNECTING]
    assert rig.statuses[3].fault is SourceFault.STALLED


@pytest.mark.parametrize("answer", ["401 Unauthorized", "404 Not Found"])
async def test_what_cannot_help_is_tried_again_rarely(serve: Serve, answer: str) -> None:
    rig = make_rig(live(f"rtsp://u:s3cret@127.0.0.1:{serve(rtsp_status(answer)).port}/x"), backoff=Backoff())
    async with running(rig):
        await rig.reached(lambda rig: rig.camera.status.state is S.BACKOFF)
        status = rig.camera.status
    assert status.next_try_s is not None
    assert status.next_try_s > 59


async def test_a_damaged_file_is_tried_again_rarely(tmp_path: Path) -> None:
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


async def test_a_link_is_followed_anew_at_each_connection(make_video: MakeVideo, tmp_path: Path) -> None:
    first, second, link = make_video("first.avi", frames=3), make_video("second.avi", frames=5), tmp_path / "cam"
    link.symlink_to(first)
    rig = make_rig(lossless(link, loop=0, fps=50))  # flat out, the frames to look through would grow without bound
    async with running(rig):
        await rig.reached(lambda rig: (0, 2) in rig.order())
        (tmp_path / "new").symlink_to(second)
        (tmp_path / "new").replace(link)  # it is there at any time, also for a pass that begins just now
        epoch = rig.camera.status.stream_epoch or 0
        await rig.reached(lambda rig: any(e > epoch and seq == 4 for e, seq in rig.order()))


async def test_no_secret_is_shown_whatever_fails(serve: Serve) -> None:
    rigs = []
    for handler in (silent, rtsp_status("401 Unauthorized"), http_status("404 Not Found"), mjpeg(50, 2)):
        port = serve(handler).port
        for scheme in ("rtsp", "http"):
            for spelling in ("s3cret%40%2F%23", "a@s3cret", "a/s3cret"):
                url = f"{scheme}://admin:{spelling}@127.0.0.1:{port}/x?password=s3cret2"
                rigs.append(make_rig(live(url, connect_timeout_s=0.2, stall_timeout_s=0.2, retry=False)))
    async with anyio.create_task_group() as tasks:
        for rig in rigs:
            tasks.start_soon(rig.camera.run)
    for rig in rigs:
        assert rig.states[-1] is S.FAILED
        assert "s3cret" not in repr(rig.statuses) + repr(rig.log)


async def test_the_rate_is_measured() -> None:
    rig = make_rig(live("synthetic:?fps=50&width=64&height=48", fps=20))
    async with running(rig):
        await rig.reached(lambda rig: len(rig.frames) >= 30)
        assert rig.camera.status.fps == pytest.approx(20, rel=0.15)
    assert rig.camera.status.info is not None
    assert rig.camera.status.info.fps == 50


async def test_slow_on_purpose_is_no_stall() -> None:
    rig = make_rig(live("synthetic:?width=64&height=48", fps=2, stall_timeout_s=0.2))
    async with running(rig):
        await rig.reached(lambda rig: len(rig.frames) >= 4)
    assert rig.states == [S.CONNECTING, S.RUNNING]


async def test_waiting_for_the_consumer_is_no_stall() -> None:
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


class UnevenCapture:
    """A file of a second with frames at these times, for which 30 frames are announced."""

    def __init__(self, pts_ms: list[int | None]) -> None:
        self.info = SourceInfo(backend="ffmpeg", fps=30.0, frame_count=30)
        self.ended: Ended | None = None
        self.starved = False
        self._left = list(enumerate(pts_ms))

    async def receive(self) -> Captured | None:
        if not self._left:
            self.ended = Ended(frames=4, skipped=0, failed=0)
            return None
        number, pts_ms = self._left.pop(0)
        pts_ns = None if pts_ms is None else pts_ms * 1_000_000
        return Captured(noise(number), number, time.time_ns(), time.monotonic_ns(), pts_ns)


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


async def test_every_state_can_be_stopped(serve: Serve) -> None:
    for source, state in (
        (f"rtsp://127.0.0.1:{serve(silent).port}/x", S.CONNECTING),
        ("/nothere.mp4", S.BACKOFF),
        ("synthetic:", S.RUNNING),
    ):
        rig = make_rig(live(source), backoff=Backoff(first_s=100, cap_s=100))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.camera.run)
            await rig.reached(lambda rig, state=state: rig.camera.status.state is state)
            await anyio.sleep(0.3)
            start = time.monotonic()
            tasks.cancel_scope.cancel()
        assert time.monotonic() - start < 0.5
        assert adds_up(rig)


async def test_a_stop_at_any_moment_leaves_no_process(serve: Serve) -> None:
    """Stops that come while a process starts, connects, waits, backs off or is killed itself."""
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
        assert adds_up(rig)
    assert slowest_s < 1


async def test_a_full_lossless_queue_can_be_left() -> None:
    rig = make_rig(lossless("synthetic:?width=64&height=48", queue_frames=2))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.camera.run)
        await rig.reached(lambda rig: rig.queue.counters.captured == 3)
        await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    assert rig.queue.counters.dropped == 1
    assert adds_up(rig)
