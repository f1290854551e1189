"""A frame that FFmpeg does not convert is never a picture: OpenCV gives memory that nobody wrote, and says True."""

import socket
from collections.abc import Callable
from pathlib import Path

import cv2
import pytest

from retinad.pipeline.capture.camera import CameraState
from retinad.pipeline.capture.probe import probe
from retinad.pipeline.capture.starts import CaptureStarts
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.errors import SourceError, SourceFault

from .rig import live, lossless, make_rig, play, running
from .servers import FakeServer, Handler, draw_number, read_number

pytestmark = pytest.mark.anyio

Serve = Callable[[Handler], FakeServer]
WIDTH, HEIGHT = 320, 256
EXTENSION = b"\0\0\1\xb5"


def y4m(frames: int, *, interlaced: bool) -> bytes:
    """Raw frames of one colour, whose header says how they were scanned."""
    picture = b"FRAME\n" + bytes([102]) * WIDTH * HEIGHT + (bytes([90]) + bytes([180])) * (WIDTH * HEIGHT // 4)
    scan = b"t" if interlaced else b"p"
    return b"YUV4MPEG2 W%d H%d F25:1 I%s A1:1 C420jpeg\n" % (WIDTH, HEIGHT, scan) + picture * frames


def mpeg2(path: Path, frames: int, interlaced: Callable[[int], bool]) -> Path:
    """Numbered frames of MPEG-2; some, by their place in the file, are flagged as interlaced."""
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"MPG2"), 25.0, (WIDTH, HEIGHT))
    for number in range(frames):
        writer.write(draw_number(number, WIDTH, HEIGHT))
    writer.release()
    data, at, number = bytearray(path.read_bytes()), -1, 0
    while (at := data.find(EXTENSION, at + 1)) >= 0:
        kind = data[at + 4] >> 4
        if kind == 1:
            data[at + 5] &= ~0x08  # progressive_sequence
        elif kind == 8:
            if interlaced(number):
                data[at + 7] &= ~0x01  # chroma_420_type
                data[at + 8] &= ~0x80  # progressive_frame
            number += 1
    assert number == frames
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("frames", [2, 40])
@pytest.mark.parametrize("codec", ["raw", "mpeg2"])
async def test_an_interlaced_file_fails_and_says_so(tmp_path: Path, codec: str, frames: int) -> None:
    path = tmp_path / ("a.y4m" if codec == "raw" else "a.m2v")
    if codec == "raw":
        path.write_bytes(y4m(frames, interlaced=True))
    else:
        mpeg2(path, frames, lambda number: True)
    rig = await play(lossless(path))
    assert (rig.frames, rig.statuses[-1].state, rig.statuses[-1].fault) == ([], CameraState.FAILED, SourceFault.CODEC)
    assert "is interlaced" in (rig.statuses[-1].reason or "")
    assert rig.queue.counters.failed == rig.queue.counters.captured == min(frames, 5)
    found = await probe(lossless(path), CaptureStarts())  # as `extract` and `check` do
    assert isinstance(found, SourceError)
    assert "is interlaced" in str(found)


async def test_the_progressive_twin_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.y4m").write_bytes(y4m(10, interlaced=False))
    assert len((await play(lossless(tmp_path / "a.y4m"))).frames) == 10
    rig = await play(lossless(mpeg2(tmp_path / "a.m2v", 10, lambda number: False)), keep=True)
    assert [read_number(frame.pixels) for frame in rig.frames] == list(range(10))


@pytest.mark.parametrize("mode", [live, lossless])  # decoded by one thread, and by four
async def test_only_the_interlaced_frames_of_a_mixed_file_fail(
    tmp_path: Path, mode: Callable[[Path], CameraConfig]
) -> None:
    """OpenCV's memory holds the previous frame then: it would be published again, under another number."""
    interlaced = [number for number in range(60) if number % 3 == 1 or 20 <= number < 40]
    rig = await play(mode(mpeg2(tmp_path / "a.m2v", 60, lambda number: number in interlaced)), keep=True)
    assert rig.statuses[-1].state is CameraState.ENDED
    assert len(rig.frames) == 60 - len(interlaced)
    assert [read_number(frame.pixels) for frame in rig.frames] == [frame.stamp.source_seq for frame in rig.frames]
    assert rig.queue.counters.failed == len(interlaced)


async def test_an_interlaced_stream_is_in_backoff_with_that_reason(serve: Serve) -> None:
    def send(server: FakeServer, peer: socket.socket) -> None:
        server.receive(peer)
        peer.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: video/x-yuv4mpeg\r\n\r\n" + y4m(50, interlaced=True))
        while server.receive(peer):
            pass

    rig = make_rig(live(f"http://127.0.0.1:{serve(send).port}/x"))
    async with running(rig):
        await rig.reached(lambda rig: rig.camera.status.state is CameraState.BACKOFF)
        assert rig.camera.status.fault is SourceFault.CODEC
        assert "is interlaced" in (rig.camera.status.reason or "")
    assert rig.frames == []
    assert rig.queue.counters.failed >= 5
