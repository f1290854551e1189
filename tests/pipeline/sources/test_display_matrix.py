"""A video is shown as its display matrix says, mirrors included; OpenCV knows the matrix's angle only."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from retinad.pipeline.capture.capture import open_capture
from retinad.pipeline.sources.display_matrix import file_orientation
from retinad.pipeline.sources.exif import upright

from ..capture.reading import every
from ..capture.rig import live, lossless

MakeVideo = Callable[..., Path]
ONE = 65536
MATRICES = {
    1: (1, 0, 0, 1),
    2: (-1, 0, 0, 1),
    3: (-1, 0, 0, -1),
    4: (1, 0, 0, -1),
    5: (0, 1, 1, 0),
    6: (0, 1, -1, 0),
    7: (0, -1, -1, 0),
    8: (0, -1, 1, 0),
}


def with_matrix(path: Path, matrix: tuple[float, ...], box: bytes = b"tkhd") -> Path:
    """The video with another matrix in the header of its track, or of the movie."""
    data = bytearray(path.read_bytes())
    place = data.index(box) + 4 + (40 if box == b"tkhd" else 36)
    a, b, c, d = (round(value * ONE) for value in matrix)
    struct.pack_into(">5i", data, place, a, b, 0, c, d)
    path.write_bytes(data)
    return path


async def frame_of(path: Path) -> tuple[np.ndarray, tuple[str, ...], tuple[int, int]]:
    async with open_capture(lossless(path)) as capture:
        seen = [captured.pixels.copy() async for captured in every(capture)]
        return seen[2], capture.info.notes, (capture.info.height, capture.info.width)


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["a.mp4", "a.mov"])
@pytest.mark.parametrize("number", sorted(MATRICES))
async def test_each_matrix_of_quarters_and_mirrors_is_applied(make_video: MakeVideo, name: str, number: int) -> None:
    path = make_video(name, frames=5, codec="mp4v")
    plain, _, _ = await frame_of(path)
    assert file_orientation(str(with_matrix(path, MATRICES[number]))) == number
    pixels, notes, size = await frame_of(path)
    assert np.array_equal(pixels, upright(plain, number))
    assert (notes, size) == ((), pixels.shape[:2])


@pytest.mark.anyio
async def test_a_slanted_matrix_is_not_applied_and_a_note_says_so(make_video: MakeVideo) -> None:
    path = make_video("a.mp4", frames=5, codec="mp4v")
    plain, _, _ = await frame_of(path)
    pixels, notes, _ = await frame_of(with_matrix(path, (0.7071, 0.7071, -0.7071, 0.7071)))
    assert np.array_equal(pixels, plain)
    assert "display matrix" in notes[0]


def test_the_matrices_of_movie_and_track_are_combined(make_video: MakeVideo) -> None:
    path = with_matrix(make_video("a.mp4", frames=2, codec="mp4v"), MATRICES[2], b"mvhd")
    assert file_orientation(str(path)) == 2
    assert file_orientation(str(with_matrix(path, MATRICES[2]))) == 1, "two mirrors cancel each other"
    assert file_orientation(str(with_matrix(path, (2, 0, 0, 2)))) == 2, "a scale is no turn"


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "other"])
def test_a_file_without_an_index_is_upright(make_video: MakeVideo, damage: str) -> None:
    path = make_video("a.mkv" if damage == "other" else "a.mp4", frames=2, codec="mp4v")
    data = path.read_bytes()
    start = data.find(b"moov") + 30
    cuts = {"cut": data[:start], "noise": data[: start - 30] + bytes(range(256)) * 9, "empty": b"", "other": data}
    path.write_bytes(cuts[damage])
    assert file_orientation(str(path)) == 1


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert file_orientation(str(tmp_path / "pipe")) == 1


@pytest.mark.anyio
async def test_a_mirrored_video_plays_in_live_mode_too(make_video: MakeVideo) -> None:
    path = with_matrix(make_video("a.mp4", frames=5, fps=100, codec="mp4v"), MATRICES[5])
    async with open_capture(live(path)) as capture:
        assert {captured.pixels.shape async for captured in every(capture)} == {(320, 240, 3)}
