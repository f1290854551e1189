"""A source that cannot be opened twice is opened once."""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from retinad.pipeline.capture.camera import CameraState
from retinad.pipeline.capture.capture import open_capture
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.errors import SourceFault

from .reading import failure
from .rig import live, lossless, play
from .servers import FakeServer, Handler, read_number

pytestmark = pytest.mark.anyio

MakeVideo = Callable[..., Path]


@pytest.mark.parametrize("make", [live, lossless])
@pytest.mark.parametrize("name", ["a.mkv", "a.ts", "a.avi"])
async def test_a_fifo_gives_every_frame_of_its_writer(
    make_video: MakeVideo, tmp_path: Path, make: Callable[..., CameraConfig], name: str
) -> None:
    data = make_video(name, frames=20, codec="mp4v" if name == "a.ts" else "MJPG").read_bytes()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    ends: list[str] = []

    def write() -> None:
        try:
            with fifo.open("wb") as sink:
                sink.write(data)
        except BrokenPipeError:
            ends.append("broken")
        else:
            ends.append("whole")

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    rig = await play(make(fifo, queue_frames=30, retry=False), keep=True)
    writer.join(5)
    assert ends == ["whole"]
    assert [read_number(frame.pixels) for frame in rig.frames] == list(range(20))
    assert rig.statuses[-1].state is CameraState.ENDED


async def test_a_fifo_without_a_writer_is_a_timeout(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with anyio.fail_after(30):
        error = await failure(lossless(tmp_path / "fifo", connect_timeout_s=0.5))
    assert error.fault is SourceFault.TIMEOUT


async def test_a_server_of_one_request_gets_one(make_video: MakeVideo, serve: Callable[[Handler], FakeServer]) -> None:
    data = make_video("a.ts", frames=20, codec="mp4v").read_bytes()

    def once(server: FakeServer, peer: socket.socket) -> None:
        server.receive(peer)
        if len(server.requests) == 1:
            with suppress(OSError):
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: video/mp2t\r\nConnection: close\r\n\r\n" + data)

    server = serve(once)
    async with open_capture(lossless(f"http://127.0.0.1:{server.port}/live.ts")) as capture:
        captured = await capture.receive()
        assert captured is not None
    assert server.connections == 1
