"""A change of frame size never goes unnoticed."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from retinad.pipeline.capture.camera import CameraState
from retinad.pipeline.config import CameraConfig

from .rig import live, lossless, make_rig, play, running
from .servers import FakeServer, Handler, draw_number, read_number, resizing

pytestmark = pytest.mark.anyio

MakeVideo = Callable[..., Path]
Serve = Callable[[Handler], FakeServer]
S = CameraState


@pytest.mark.parametrize("retry", [True, False])
async def test_a_stream_that_changes_its_size_is_reopened(serve: Serve, retry: bool) -> None:
    rig = make_rig(live(f"http://127.0.0.1:{serve(resizing((640, 352), after=10)).port}/x", retry=retry))
    async with running(rig, keep=True):
        await rig.reached(lambda rig: any(frame.stamp.source_size == (640, 352) for frame in rig.frames))
    sizes = [(frame.stamp.stream_epoch, frame.pixels.shape[1::-1]) for frame in rig.frames]
    assert set(sizes) == {(0, (320, 240)), (1, (640, 352))}
    assert sizes == sorted(sizes)
    assert all((read_number(frame.pixels) >= 10) == (frame.stamp.stream_epoch == 1) for frame in rig.frames)
    assert rig.states[:5] == [S.CONNECTING, S.RUNNING, S.BACKOFF, S.CONNECTING, S.RUNNING]
    assert (rig.statuses[2].fault, rig.camera.status.size) == ("resized", (640, 352))


@pytest.mark.parametrize(("codec", "suffix"), [("mp4v", ".ts"), ("MPG2", ".ts"), ("MJPG", ".mjpeg")])
async def test_a_file_that_changes_its_size_is_scaled_with_a_warning(
    make_video: MakeVideo, tmp_path: Path, codec: str, suffix: str
) -> None:
    """OpenCV scales to the first size, even after a seek: another size needs another file."""
    if codec == "MJPG":  # without a container
        parts = [cv2.imencode(".jpg", draw_number(n, *size))[1] for size in ((320, 240), (640, 352)) for n in range(20)]
        data = b"".join(part.tobytes() for part in parts)
    else:
        small = make_video("small.ts", frames=20, codec=codec)
        data = small.read_bytes() + make_video("large.ts", frames=20, codec=codec, size=(640, 352)).read_bytes()
    path = tmp_path / f"mixed{suffix}"
    path.write_bytes(data)
    rig = await play(lossless(path))
    assert len(rig.frames) >= 36
    assert {frame.stamp.source_size for frame in rig.frames} == {(320, 240)}
    warnings = [line for line in rig.log if line.startswith("scaled: ")]
    assert len(warnings) == 1
    assert "320x240" in warnings[0]
    assert rig.queue.counters.decode_errors >= 1
    assert rig.states == [S.CONNECTING, S.RUNNING, S.ENDED]


@pytest.mark.parametrize("mode", [live, lossless])  # decoded by one thread, and by four
@pytest.mark.parametrize(("codec", "suffix"), [("mp4v", ".ts"), ("VP80", ".webm"), ("FFV1", ".mkv")])
async def test_a_file_of_one_size_has_no_warning(
    make_video: MakeVideo, codec: str, suffix: str, mode: Callable[..., CameraConfig]
) -> None:
    rig = await play(mode(make_video(f"a{suffix}", frames=20, fps=200.0, codec=codec)))
    assert rig.camera.status.state is S.ENDED
    assert not [line for line in rig.log if line.startswith("scaled: ")]


async def test_a_video_of_an_odd_size_keeps_it(tmp_path: Path) -> None:
    row = np.linspace(0, 255, 321).astype(np.uint8)
    image = np.ascontiguousarray(np.broadcast_to(row[None, :, None], (241, 321, 3)))
    path = tmp_path / "odd.mjpeg"
    path.write_bytes(cv2.imencode(".jpg", image)[1].tobytes() * 3)
    rig = await play(lossless(path), keep=True)
    assert [frame.stamp.source_size for frame in rig.frames] == [(321, 241)] * 3
    assert np.abs(rig.frames[0].pixels.astype(int) - image).max() <= 6, "a smooth gradient loses little as JPEG"
