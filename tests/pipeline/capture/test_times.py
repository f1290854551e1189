"""Timestamps, rate, rotation and depth that a video claims are used by documented rules, and never trusted blindly."""

import struct
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from .rig import live, lossless, make_rig, play, running
from .servers import FakeServer, Handler, draw_number, mjpeg

pytestmark = pytest.mark.anyio

MakeVideo = Callable[..., Path]
Serve = Callable[[Handler], FakeServer]


def slow_down_after(path: Path, frames: int) -> None:
    """Make the frames after the first `frames` last five times as long, by a second entry in the table of durations."""
    data = bytearray(path.read_bytes()).replace(b"edts", b"free")  # an edit list would cut it to its old length
    moov = data.index(b"moov")
    for name in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stts"):
        size = data.index(name, moov) - 4
        struct.pack_into(">I", data, size, struct.unpack_from(">I", data, size)[0] + 8)
    entries = data.index(b"stts", moov) + 8
    _, count, duration = struct.unpack_from(">III", data, entries)
    data[entries : entries + 12] = struct.pack(">IIIII", 2, frames, duration, count - frames, 5 * duration)
    path.write_bytes(data)


def rotate_display(path: Path) -> None:
    """Rotate an MP4's image by 90 degrees through its display matrix."""
    data = bytearray(path.read_bytes())
    struct.pack_into(">9i", data, data.index(b"tkhd") + 44, 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
    path.write_bytes(data)


async def test_uneven_timestamps_are_kept(make_video: MakeVideo) -> None:
    path = make_video("vfr.mp4", frames=30, fps=10.0, codec="mp4v")
    slow_down_after(path, 10)
    rig = await play(lossless(path))
    assert [frame.stamp.pts_ns for frame in rig.frames] == pytest.approx(
        [n * 10**8 if n <= 10 else 10**9 + (n - 10) * 5 * 10**8 for n in range(30)], abs=10**6
    )


@pytest.mark.parametrize("upright", [True, False])
async def test_a_rotated_video_is_turned_upright(make_video: MakeVideo, upright: bool) -> None:
    path = make_video("a.mp4", frames=3, codec="mp4v")
    if not upright:
        rotate_display(path)
    rig = await play(lossless(path), keep=True)
    expected = draw_number(2) if upright else np.rot90(draw_number(2), -1)
    assert {frame.stamp.source_size for frame in rig.frames} == {(320, 240) if upright else (240, 320)}
    assert np.abs(rig.frames[2].pixels.astype(int) - expected).mean() < 8, "MPEG-4 loses this little at the edges"


async def test_a_claimed_rate_and_count_are_not_trusted(serve: Serve) -> None:
    """Motion JPEG over HTTP has none."""
    rig = make_rig(live(f"http://127.0.0.1:{serve(mjpeg(50)).port}/x"))
    async with running(rig):
        await rig.reached(lambda rig: len(rig.frames) >= 50)
        status = rig.camera.status
    assert status.fps == pytest.approx(50, rel=0.15)
    assert status.info is not None
    assert (status.info.fps, status.info.frame_count, status.info.finite) == (None, None, False)


async def test_the_claims_of_a_raw_stream_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "raw.mjpeg"
    path.write_bytes(b"".join(cv2.imencode(".jpg", draw_number(n))[1].tobytes() for n in range(30)))
    rig = await play(lossless(path))
    assert len(rig.frames) == 30
    assert rig.statuses[-1].reason is None
    assert rig.camera.status.info is not None
    assert rig.camera.status.info.frame_count is None


async def test_a_16_bit_video_keeps_the_upper_8_bits(tmp_path: Path) -> None:
    path = str(tmp_path / "gray16.mkv")
    how = [cv2.VIDEOWRITER_PROP_DEPTH, cv2.CV_16U, cv2.VIDEOWRITER_PROP_IS_COLOR, 0]
    writer = cv2.VideoWriter(path, cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"FFV1"), 10.0, (64, 48), how)
    assert writer.isOpened()
    image = np.linspace(0, 65535, 64 * 48).astype(np.uint16).reshape(48, 64)
    writer.write(image)
    writer.release()
    rig = await play(lossless(path), keep=True)
    pixels = rig.frames[0].pixels
    assert pixels.dtype == np.uint8
    assert pixels.shape == (48, 64, 3)
    assert np.abs(pixels.astype(int) - (image >> 8)[:, :, None]).max() <= 1, "FFmpeg may round"
