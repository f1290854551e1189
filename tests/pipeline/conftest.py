"""Settings of the pipeline tests, and fixtures for fake cameras and media files."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import cv2
import pytest
import torch

from .capture.servers import FakeServer, Handler, draw_number


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """More threads would slow down work on tensors this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the kernels' PyTorch references on a CPU, even if the kernel tests have chosen Triton's interpreter.

    The interpreter takes minutes for a model, and rounds bfloat16 differently.
    """
    if find_spec("triton") is not None:
        import triton  # type: ignore[import-untyped,unused-ignore]  # no py.typed

        monkeypatch.setattr(triton.knobs.runtime, "interpret", False)


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
