"""A capture process delivers every kind of source, in order and fully accounted for."""

import socket
from collections.abc import Callable
from pathlib import Path

import anyio
import cv2
import numpy as np
import pytest

from retinad.pipeline.capture.capture import CapturedFrame, open_capture
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.sources.synthetic import SyntheticSpec

from .reading import count, every, numbers
from .rig import live, lossless
from .servers import FakeServer, Handler, read_number

pytestmark = pytest.mark.anyio

MakeVideo = Callable[..., Path]
Serve = Callable[[Handler], FakeServer]


async def test_a_video_gives_every_frame_in_order(make_video: MakeVideo) -> None:
    async with open_capture(lossless(make_video(frames=50))) as capture:
        info = capture.info
        assert (info.backend, info.width, info.height, info.codec) == ("ffmpeg", 320, 240, "MJPG")
        assert (info.finite, info.live, info.frame_count, info.fps) == (True, False, 50, 25.0)
        seen = [(c.source_seq, read_number(c.pixels), c.pts_ns) async for c in every(capture)]
        assert await capture.receive() is None
    assert [row[:2] for row in seen] == [(n, n) for n in range(50)]
    assert seen[10][2] == pytest.approx(400_000_000, abs=1_000_000)
    assert capture.ended is not None
    assert capture.ended.frames == 50


@pytest.mark.parametrize(
    "name", ["per%20cent.avi", "clip_%d.avi", "cam 1 #2.avi", "ünïcode.avi", "a:b@c.avi", "q?[1]*.avi"]
)
async def test_special_characters_in_names_have_no_meaning(
    make_video: MakeVideo, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_video(name, frames=3)
    assert await numbers(lossless(path)) == [0, 1, 2]
    monkeypatch.chdir(path.parent)
    assert await numbers(lossless(name)) == [0, 1, 2]


async def test_file_addresses_are_decoded(make_video: MakeVideo) -> None:
    assert await numbers(lossless(make_video("a b.avi", frames=3).as_uri())) == [0, 1, 2]


async def test_a_folder_is_played_in_natural_order_without_its_unreadable_images(
    make_folder: Callable[..., Path],
) -> None:
    folder = make_folder(24)
    (folder / "f5.png").write_text("not an image")
    (folder / "f7.png").unlink()
    (folder / "f8x.png").mkdir()
    lines: list[str] = []
    async with open_capture(lossless(folder), lines.append) as capture:
        seen = [(c.source_seq, read_number(c.pixels), c.failed) async for c in every(capture)]
    assert [number for _, number, _ in seen] == [n for n in range(24) if n not in (5, 7)]
    assert [failed for _, _, failed in seen] == [0] * 5 + [1, 0, 1] + [0] * 14
    assert seen[-1][0] == 23, "unreadable images have numbers too"
    assert any("f5.png" in line for line in lines)
    assert any("f8x.png" in line for line in lines)


async def test_unreadable_images_at_the_end_are_counted(make_folder: Callable[..., Path]) -> None:
    folder = make_folder(3)
    (folder / "f2.png").write_bytes(b"")
    async with open_capture(lossless(folder)) as capture:
        assert await count(capture) == 2
    assert capture.ended is not None
    assert (capture.ended.frames, capture.ended.failed) == (3, 1)


async def test_each_image_keeps_its_own_size(tmp_path: Path) -> None:
    shapes = [(48, 64, 3), (1, 1, 3), (241, 321, 3), (1080, 1920, 3), (48, 64, 3)]
    for number, shape in enumerate(shapes):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.full(shape, 10 * number, np.uint8))
    async with open_capture(lossless(tmp_path)) as capture:
        kept = [captured.pixels async for captured in every(capture)]  # across three memories
    assert [pixels.shape for pixels in kept] == shapes
    assert [int(pixels.max()) for pixels in kept] == [0, 10, 20, 30, 40]


async def test_the_synthetic_scene_arrives_unchanged() -> None:
    spec = SyntheticSpec(width=320, height=200, seed=3, frames=20)
    scene = spec.scene()
    async with open_capture(lossless("synthetic:?width=320&height=200&seed=3&frames=20")) as capture:
        count = 0
        async for captured in every(capture):
            assert np.array_equal(captured.pixels, scene.image(captured.source_seq))
            count += 1
    assert count == 20


async def test_live_mode_keeps_draining_and_counts_discarded_frames() -> None:
    config = live("synthetic:?fps=200&frames=200&width=64&height=48", queue_frames=1)
    async with open_capture(config) as capture:
        held = [await capture.receive() for _ in range(4)]  # all slots
        assert capture.starved
        await anyio.sleep(0.3)
        held.clear()
        seen = [captured async for captured in every(capture)]
    assert capture.ended is not None
    assert sum(c.skipped for c in seen) >= 20
    assert 4 + len(seen) + sum(c.skipped for c in seen) + capture.ended.skipped == 200 == capture.ended.frames


async def test_lossless_mode_waits_for_a_slot() -> None:
    async with open_capture(lossless("synthetic:?frames=50&width=64&height=48", queue_frames=1)) as capture:
        held = [await capture.receive() for _ in range(4)]
        with anyio.move_on_after(0.2) as scope:
            await capture.receive()
        assert scope.cancelled_caught
        assert capture.starved
        held.clear()
        assert [c.source_seq async for c in every(capture)] == list(range(4, 50))


async def test_live_files_play_at_their_own_rate(make_video: MakeVideo) -> None:
    async with open_capture(live(make_video(frames=26, fps=25.0))) as capture:
        times = [captured.capture_monotonic_ns async for captured in every(capture)]
    assert (times[-1] - times[0]) / 1e9 == pytest.approx(1.0, abs=0.25)


async def test_a_stream_that_is_sent_here_is_read(make_video: MakeVideo) -> None:
    """MPEG-TS over UDP, without a pause: FFmpeg buffers what it has not read."""
    data = make_video("a.ts", frames=60, codec="mp4v").read_bytes()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind(("127.0.0.1", 0))
        port = sender.getsockname()[1]

    async def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while True:
                for start in range(0, len(data), 1316):
                    sender.sendto(data[start : start + 1316], ("127.0.0.1", port))
                    await anyio.sleep(0.002)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        async with open_capture(live(f"UDP://127.0.0.1:{port}", connect_timeout_s=20)) as capture:
            assert (capture.info.live, capture.info.finite) == (True, False)
            captured = await capture.receive()
            assert captured is not None
            assert captured.pixels.shape == (240, 320, 3)
        tasks.cancel_scope.cancel()


async def test_a_capped_live_file_skips_frames_and_has_a_whole_end(make_video: MakeVideo) -> None:
    async with open_capture(live(make_video(frames=50, fps=25.0), fps=5)) as capture:
        seen = [(c.capture_monotonic_ns, c.pts_ns or 0, c.source_seq) async for c in every(capture)]
    assert 8 <= len(seen) <= 12
    assert [seq for _, _, seq in seen] == list(range(len(seen)))
    media, clock = (seen[-1][n] - seen[0][n] for n in (1, 0))
    assert media / 1e9 == pytest.approx(clock / 1e9, abs=0.25)
    assert capture.ended is not None
    assert capture.ended.frames == 50


@pytest.mark.parametrize(
    ("make", "most"), [(lambda source: live(source, fps=4, loop=0), 4), (lambda source: live(source, loop=0), 30)]
)
async def test_a_looped_still_keeps_to_its_rate(
    make_folder: Callable[..., Path], make: Callable[[Path], CameraConfig], most: float
) -> None:
    times = []
    async with open_capture(make(make_folder(1))) as capture:
        with anyio.move_on_after(1.5):
            while True:
                if (captured := await capture.receive()) is None:
                    await capture.open()
                else:
                    times.append(captured.capture_monotonic_ns)
    assert len(times) >= 3
    assert (len(times) - 1) / ((times[-1] - times[0]) / 1e9) <= most * 1.2


async def test_a_slot_is_never_overwritten_while_a_view_exists() -> None:
    scene = SyntheticSpec(width=160, height=120).scene()
    chance = np.random.default_rng(0)
    held: list[tuple[int, np.ndarray]] = []
    async with open_capture(live("synthetic:?width=160&height=120&fps=5000", queue_frames=5)) as capture:
        for _ in range(1500):
            captured = await capture.receive()
            assert captured is not None
            held.append((captured.source_seq, captured.pixels[::3, ::5]))
            del captured
            if len(held) > chance.integers(1, 8):
                number, view = held.pop(int(chance.integers(len(held))))
                assert np.array_equal(view, scene.image(number)[::3, ::5])
                del view
    for number, view in held:  # they outlive the process
        assert np.array_equal(view, scene.image(number)[::3, ::5])


async def test_slots_released_in_another_thread_are_reused() -> None:
    async with open_capture(lossless("synthetic:?frames=300&width=64&height=48", queue_frames=1)) as capture:
        send, receive = anyio.create_memory_object_stream[CapturedFrame](0)

        async def release() -> None:
            async with receive:
                async for captured in receive:
                    await anyio.to_thread.run_sync(captured.pixels.sum)
                    del captured

        async with anyio.create_task_group() as tasks, send:
            tasks.start_soon(release)
            async for captured in every(capture):
                await send.send(captured)
                del captured
    assert capture.ended is not None
    assert capture.ended.frames == 300


async def test_a_source_can_be_rewound_in_the_same_process(make_video: MakeVideo) -> None:
    async with open_capture(lossless(make_video(frames=3))) as capture:
        pid = capture.pid
        for _ in range(3):
            assert [c.source_seq async for c in every(capture)] == [0, 1, 2]
            await capture.open()
        assert capture.pid == pid
