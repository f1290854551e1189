"""A file on a web server is a file: in lossless mode every frame arrives, and its end is not a failure."""

from collections.abc import Callable
from pathlib import Path

import cv2
import pytest

from retinad.pipeline.capture.camera import CameraState
from retinad.pipeline.errors import SourceFault

from .reading import failure
from .rig import lossless, play
from .servers import FakeServer, Handler, draw_number, files, mjpeg, read_number

pytestmark = pytest.mark.anyio

MakeVideo = Callable[..., Path]
Serve = Callable[[Handler], FakeServer]
S = CameraState


def make_playlist(make_video: MakeVideo) -> str:
    lines = ["#EXTM3U", "#EXT-X-VERSION:3", "#EXT-X-TARGETDURATION:1"]
    for number in range(3):
        make_video(f"part{number}.ts", frames=20, fps=20.0, codec="mp4v")
        lines += ["#EXT-X-DISCONTINUITY", "#EXTINF:1.0,", f"part{number}.ts"]
    playlist = make_video("list.ts", frames=1).with_name("list.m3u8")
    playlist.write_text("\n".join([*lines, "#EXT-X-ENDLIST", ""]))
    return playlist.name


async def test_a_playlist_delivers_every_frame_and_ends(serve: Serve, make_video: MakeVideo, tmp_path: Path) -> None:
    name = make_playlist(make_video)
    rig = await play(lossless(f"http://127.0.0.1:{serve(files(tmp_path)).port}/{name}"), keep=True)
    assert [read_number(frame.pixels) for frame in rig.frames] == [*range(20)] * 3
    assert rig.order() == [(0, n) for n in range(60)]
    assert rig.states == [S.CONNECTING, S.RUNNING, S.ENDED]


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "mp4v"), ("a.ts", "mp4v"), ("a.mjpeg", "")])
async def test_a_file_delivers_every_frame_and_ends(
    serve: Serve, make_video: MakeVideo, tmp_path: Path, name: str, codec: str
) -> None:
    """Some containers have no frame count, and this server does not support range requests."""
    if codec:
        make_video(name, frames=30, codec=codec)
    else:
        (tmp_path / name).write_bytes(b"".join(cv2.imencode(".jpg", draw_number(n))[1].tobytes() for n in range(30)))
    rig = await play(lossless(f"http://u:p@127.0.0.1:{serve(files(tmp_path)).port}/{name}?x=1"), keep=True)
    assert [read_number(frame.pixels) for frame in rig.frames] == list(range(30))
    assert rig.states == [S.CONNECTING, S.RUNNING, S.ENDED]
    assert rig.statuses[-1].reason is None


@pytest.mark.parametrize("name", ["a.avi", "a.ts"])
async def test_a_connection_that_closes_within_a_file_is_a_failure(
    serve: Serve, make_video: MakeVideo, tmp_path: Path, name: str
) -> None:
    make_video(name, frames=30, codec="mp4v" if name == "a.ts" else "MJPG")
    error = await failure(lossless(f"http://127.0.0.1:{serve(files(tmp_path, keep=0.7)).port}/{name}"))
    assert error.fault is SourceFault.CLOSED, str(error)


async def test_a_camera_that_closes_has_failed_in_lossless_mode_too(serve: Serve) -> None:
    error = await failure(lossless(f"http://127.0.0.1:{serve(mjpeg(100, 5)).port}/x"))
    assert error.fault is SourceFault.CLOSED
