"""Damaged and missing frames are counted and reported, and the others arrive."""

import struct
from collections.abc import Callable
from pathlib import Path

import anyio
import cv2
import numpy as np
import pytest

from retinad.pipeline.capture.camera import Camera, CameraState
from retinad.pipeline.config import CameraConfig, CaptureMode
from retinad.pipeline.errors import SourceFault
from retinad.pipeline.frame_queue import FrameCounters, FrameQueues

from .fakes import uneven_file
from .rig import live, lossless, make_rig, play, running
from .servers import draw_number, read_number

pytestmark = pytest.mark.anyio

MakeVideo = Callable[..., Path]
S = CameraState


async def test_unreadable_images_count_as_failed(make_folder: Callable[..., Path]) -> None:
    folder = make_folder(6)
    for name in ("f0.png", "f3.png", "f5.png"):
        (folder / name).write_text("not an image")
    rig = await play(lossless(folder))
    assert rig.order() == [(0, 1), (0, 2), (0, 4)]
    counters = rig.queue.counters
    assert (counters.captured, counters.published, counters.failed, counters.in_flight) == (6, 3, 3, 0)
    assert sum("left out" in line for line in rig.log) == 3


async def test_damage_is_reported_while_frames_wait_for_a_slower_model(make_folder: Callable[..., Path]) -> None:
    """The capture process is past the first image while the queue is full; later there is always a next frame."""
    folder = make_folder(24)
    for name in ("f3.png", "f10.png"):
        (folder / name).write_text("not an image")
    rig = make_rig(lossless(folder, queue_frames=2))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.camera.run)
        await rig.reached(lambda rig: rig.queue.counters.decode_errors == 1)
        await rig.reached(lambda rig: rig.queue.would_wait)
        for _ in range(8):
            await rig.reached(lambda rig: rig.queue.would_wait)
            rig.queue.take_nowait()
        await rig.reached(lambda rig: rig.queue.counters.decode_errors == 2)
        assert rig.camera.status.state is S.RUNNING
        tasks.cancel_scope.cancel()
    assert [line.split(":")[1].rpartition("/")[2] for line in rig.log] == ["f3.png", "f10.png"]


@pytest.mark.parametrize("loop", [0, 1])
async def test_a_source_without_a_readable_frame_fails_and_does_not_spin(tmp_path: Path, loop: int) -> None:
    (tmp_path / "f.png").write_text("not an image")
    rig = await play(lossless(tmp_path, loop=loop))
    assert (rig.statuses[-1].state, rig.statuses[-1].fault) == (S.FAILED, SourceFault.UNREADABLE)
    assert rig.queue.counters.failed == rig.queue.counters.captured == 1


async def test_a_damaged_video_continues_and_counts_what_it_lost(make_video: MakeVideo) -> None:
    path = make_video(frames=50)
    data = bytearray(path.read_bytes())
    for place in range(len(data) // 3, 2 * len(data) // 3, 97):
        data[place] = 255 - data[place]
    path.write_bytes(data)
    rig = await play(lossless(path), keep=True)
    counters = rig.queue.counters
    assert counters.captured == counters.published + counters.failed
    assert 40 <= counters.captured <= 50, "frames with a damaged header are invisible"
    assert 5 <= counters.failed <= 25
    assert rig.queue.counters.decode_errors > 0
    assert read_number(rig.frames[-1].pixels) == 49


@pytest.mark.parametrize("mode", [live, lossless])  # decoded by one thread, and by four
@pytest.mark.parametrize("end", [b"", b"\xff\xd9"])
async def test_a_part_of_a_motion_jpeg_picture_is_no_picture(
    tmp_path: Path, mode: Callable[[Path], CameraConfig], end: bytes
) -> None:
    """FFmpeg delivers it: the rest is black, or of an earlier frame."""
    jpegs = [cv2.imencode(".jpg", draw_number(number))[1].tobytes() for number in range(12)]
    for number in (4, 7, 8):
        jpegs[number] = jpegs[number][: len(jpegs[number]) * 2 // 3] + end
    (tmp_path / "a.mjpeg").write_bytes(b"".join(jpegs))
    rig = await play(mode(tmp_path / "a.mjpeg"), keep=True)
    whole = [number for number in range(12) if number not in (4, 7, 8)]
    assert [read_number(frame.pixels) for frame in rig.frames] == whole
    assert [frame.stamp.source_seq for frame in rig.frames] == whole
    assert rig.queue.counters.failed == 3


async def test_damage_that_a_decoder_conceals_is_counted(make_video: MakeVideo) -> None:
    """Such frames arrive as if intact: only `decode_errors` shows the damage."""
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
async def test_an_early_end_is_reported(make_video: MakeVideo, name: str, codec: str) -> None:
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
        ([0, 33, 500, 967], [], None),  # uneven times: 30 frames follow from its length and rate, and are not a count
        ([0, 33, 500, 967], ["[OPENCV:FFMPEG:24] Packet corrupt"], "it ended after 4 of 30 frames"),
        ([0, 33, 67, 100], [], "it ended after 4 of 30 frames"),
        ([None, None, None, None], [], "it ended after 4 of 30 frames"),
    ],
)
async def test_an_end_is_early_only_if_frames_or_data_are_missing(
    pts_ms: list[int | None], damage: list[str], reason: str | None
) -> None:
    rig = make_rig(lossless("/uneven.mkv"), capture=uneven_file(pts_ms, damage))
    async with running(rig):
        await rig.reached(lambda rig: rig.camera.status.state is S.ENDED)
    assert rig.camera.status.reason == reason


def set_duration(path: Path, share: float) -> None:
    """Change the duration of a Matroska file, which is that of its longest track."""
    data = bytearray(path.read_bytes())
    place = data.index(b"\x44\x89\x88") + 3
    struct.pack_into(">d", data, place, struct.unpack_from(">d", data, place)[0] * share)
    path.write_bytes(data)


def show_a_part(path: Path, share: float) -> None:
    """Shorten what the edit list of an MP4 file shows."""
    data = bytearray(path.read_bytes())
    place = data.index(b"elst") + 12
    struct.pack_into(">I", data, place, round(struct.unpack_from(">I", data, place)[0] * share))
    path.write_bytes(data)


@pytest.mark.parametrize("share", [1.02, 1.5])
async def test_a_sound_that_is_longer_than_the_picture_is_no_early_end(make_video: MakeVideo, share: float) -> None:
    path = make_video("a.mkv", frames=50, codec="mp4v")
    set_duration(path, share)
    rig = await play(lossless(path))
    assert (len(rig.frames), rig.statuses[-1].state, rig.statuses[-1].reason) == (50, S.ENDED, None)
    assert rig.camera.status.info is not None
    assert rig.camera.status.info.frame_count == round(50 * share)


async def test_frames_that_an_edit_list_hides_are_no_early_end(make_video: MakeVideo) -> None:
    path = make_video("a.mp4", frames=50, codec="mp4v")
    show_a_part(path, 0.5)
    rig = await play(lossless(path))
    assert 24 <= len(rig.frames) <= 26
    assert (rig.statuses[-1].state, rig.statuses[-1].reason) == (S.ENDED, None)


async def test_a_part_of_an_mp4_with_its_index_first_is_an_early_end(make_video: MakeVideo) -> None:
    path = make_video("a.mp4", frames=50, codec="mp4v")
    put_index_first(path)
    assert (await play(lossless(path))).statuses[-1].reason is None
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    rig = await play(lossless(path))
    captured = rig.queue.counters.captured
    assert 20 <= captured < 50
    assert rig.statuses[-1].reason == f"it ended after {captured} of 50 frames"


def put_index_first(path: Path) -> None:
    data, boxes, place = path.read_bytes(), [], 0
    while place < len(data):
        (size,) = struct.unpack_from(">I", data, place)
        boxes.append(bytearray(data[place : place + size]))
        place += size
    (moov,) = (box for box in boxes if box[4:8] == b"moov")
    table = moov.index(b"stco") + 8
    for number in range(struct.unpack_from(">I", moov, table)[0]):
        entry = table + 4 + 4 * number
        struct.pack_into(">I", moov, entry, struct.unpack_from(">I", moov, entry)[0] + len(moov))
    boxes.remove(moov)
    path.write_bytes(b"".join([boxes[0], moov, *boxes[1:]]))


async def test_damage_counters_continue_when_a_camera_is_recreated(make_folder: Callable[..., Path]) -> None:
    """As after a reload that changes the camera."""
    folder = make_folder(2)
    (folder / "f0.png").write_text("not an image")
    counters = FrameCounters()
    for total in (1, 2):
        queue = FrameQueues().open("cam", CaptureMode.LIVE, 2, counters)
        await Camera(live(folder), queue, lambda status: None).run()
        assert counters.decode_errors == total
