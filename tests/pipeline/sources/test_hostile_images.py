"""No bytes in an image file can crash the service, spoil the other images or exhaust memory."""

import struct
import tempfile
import zlib
from pathlib import Path

import anyio
import cv2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinad.pipeline.capture.capture import open_capture

from ..capture.reading import every
from ..capture.rig import lossless
from ..capture.servers import draw_number, read_number

pytestmark = pytest.mark.anyio

SUFFIXES = (".png", ".jpg", ".bmp", ".tiff", ".webp", ".ppm", ".jp2")
LARGEST = 8190
"""Side of a square just below the limit of 67 megapixels."""


def encoded(suffix: str) -> bytes:
    return cv2.imencode(suffix, draw_number(5, 64, 48))[1].tobytes()


def claiming(suffix: str, side: int) -> bytes:
    """A small image whose header claims a square of this side, as PNG in 16 bits with transparency."""
    data = bytearray(encoded(suffix))
    match suffix:
        case ".png":
            head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 16, 6, 0, 0, 0)
            data[12:33] = head + struct.pack(">I", zlib.crc32(head))
        case ".jpg":
            start = data.index(b"\xff\xc0") + 5
            data[start : start + 4] = struct.pack(">HH", min(side, 65535), min(side, 65535))
        case ".bmp":
            data[18:26] = struct.pack("<ii", side, side)
        case ".tiff":
            order = "<" if data[:2] == b"II" else ">"
            (first,) = struct.unpack_from(f"{order}I", data, 4)
            for entry in range(struct.unpack_from(f"{order}H", data, first)[0]):
                place = first + 2 + 12 * entry
                if struct.unpack_from(f"{order}H", data, place)[0] in (256, 257):  # width, height
                    struct.pack_into(f"{order}HII", data, place + 2, 4, 1, side)
        case ".webp":
            start = data.index(b"VP8L") + 9 if b"VP8L" in data else data.index(b"VP8 ") + 14
            data[start : start + 4] = struct.pack("<I", 0xFFFFFFF)
        case ".ppm":
            data = bytearray(data.replace(b"64 48", b"%d %d" % (side, side), 1))
        case ".jp2":
            start = data.index(b"ihdr") + 4
            data[start : start + 8] = struct.pack(">II", side, side)
            start = data.index(b"\xff\x4f\xff\x51") + 8
            data[start : start + 8] = struct.pack(">II", side, side)
    return bytes(data)


def memory_mb(pid: int) -> float:
    """Peak resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024


async def test_an_image_that_claims_to_be_huge_costs_no_memory(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "0.png"), draw_number(0))
    for number, suffix in enumerate(SUFFIXES):
        for side in (LARGEST, 60_000, 2**31 - 1):
            (tmp_path / f"{number + 1}_{side}{suffix}").write_bytes(claiming(suffix, side))
    cv2.imwrite(str(tmp_path / "99.png"), draw_number(99))
    async with open_capture(lossless(tmp_path)) as capture:
        first = await capture.receive()
        assert first is not None
        before_mb = memory_mb(capture.pid)
        readable = [(read_number(captured.pixels), captured.failed) async for captured in every(capture)]
        used_mb = memory_mb(capture.pid) - before_mb
    assert readable == [(99, 3 * len(SUFFIXES))]
    assert used_mb < 500, "the largest JPEG takes 200 MB, and once more to be rotated by EXIF"


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    suffix = draw(st.sampled_from(SUFFIXES))
    data = bytearray(draw(st.sampled_from([encoded(suffix), claiming(suffix, LARGEST)])))
    for place, value in draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=8)):
        data[place] = value
    return suffix, bytes(data[: draw(st.integers(1, len(data)))])


@settings(max_examples=8, deadline=None)
@given(st.lists(damaged(), min_size=30, max_size=40))
async def test_any_damage_leaves_the_other_images_readable(files: list[tuple[str, bytes]]) -> None:
    """Read as in service: in a capture process, which a crash would end."""
    with tempfile.TemporaryDirectory() as folder:
        for number, (suffix, data) in enumerate(files):
            await anyio.Path(folder, f"{number}{suffix}").write_bytes(data)
        cv2.imwrite(f"{folder}/999.png", draw_number(99))
        async with open_capture(lossless(folder)) as capture:
            seen = [(captured.failed, captured.pixels.shape) async for captured in every(capture)]
            assert memory_mb(capture.pid) < 1000
    assert seen[-1][1] == (240, 320, 3)
    assert capture.ended is not None
    assert capture.ended.frames == len(files) + 1 == len(seen) + sum(failed for failed, _ in seen)
