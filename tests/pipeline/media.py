"""Fixtures for fake cameras and media files. They have a file of their own, so that tests on a GPU need no OpenCV."""

from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import pytest

from .capture.servers import FakeServer, Handler, draw_number


@pytest.fixture
def serve() -> Iterator[Callable[[Handler], FakeServer]]:
    servers: list[FakeServer] = []

    def start(handler: Handler) -> FakeServer:
        servers.append(FakeServer(handler))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def make_video(tmp_path: Path) -> Callable[..., Path]:
    """Writes a video whose frames show their number; the suffix selects the container."""

    def make(
        name: str = "a.avi",
        frames: int = 50,
        fps: float = 25.0,
        codec: str = "MJPG",
        size: tuple[int, int] = (320, 240),
    ) -> Path:
        path = tmp_path / name
        writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*codec), fps, size)
        for number in range(frames):
            writer.write(draw_number(number, *size))
        writer.release()
        return path

    return make


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder of PNG images that show their number; their names have no leading zeros."""

    def make(frames: int = 24) -> Path:
        folder = tmp_path / "images"
        folder.mkdir()
        for number in range(frames):
            cv2.imwrite(str(folder / f"f{number}.png"), draw_number(number))
        return folder

    return make
