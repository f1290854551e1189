"""Reads the headers of image files: size, number of pictures, orientation, white level, transparency.

Only what is part of the picture counts: chunks and segments are followed from the start, and bytes behind the end are
not read.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .exif import first_orientation

PNG = b"\x89PNG\r\n\x1a\n"
JPEG = b"\xff\xd8"
JPEG2000 = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_MARKER = re.compile(rb"\xff+([^\x00\xff])")
_AFTER_SCAN = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")
_ALONE = {0x01, *range(0xD0, 0xD8)}
_SIZES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_PNM = re.compile(rb"P([1-6])" + rb"(?:\s|#[^\n]*\n)+(\d+)" * 2)
_PNM_MAXIMUM = re.compile(rb"(?:\s|#[^\n]*\n)+(\d+)")
_DAMAGE = (struct.error, OverflowError)
"""The errors that a damaged file causes: an offset behind the end of the file, or one that no pointer can hold."""
_MOST_PAGES = 10_000
_ASSOCIATED, _UNASSOCIATED = 1, 2
_CMYK = 5


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of an image file declares.

    Attributes:
        size: width and height in pixels, or None if it is not known.
        pictures: number of pages of a TIFF, pictures of a PGM or PPM, or frames of an animation; otherwise 1.
        times_ns: when each frame of an animation is shown; empty if the file does not say.
        starts: where each picture begins, if they follow one another as files of their own (PGM, PPM).
        orientation: EXIF orientation of formats that OpenCV does not rotate (PNG, WebP), 1 to 8.
        white: value of white in the samples that OpenCV returns, if it differs from the greatest value of their type.
        transparent_gray: the gray value that stands for transparent, in the samples that OpenCV returns.
        alpha: whether the fourth channel, if there is one, means transparency.
        premultiplied: whether the colours are already multiplied by that channel.
        refusal: why OpenCV would read the file wrongly, or an empty string.
    """

    size: tuple[int, int] | None = None
    pictures: int = 1
    times_ns: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    orientation: int = 1
    white: int | None = None
    transparent_gray: int | None = None
    alpha: bool = True
    premultiplied: bool = False
    refusal: str = ""


def read_header(data: bytes) -> Header:
    """Read the header of an image file.

    For a damaged or unknown file, returns the default header, or the parts that can be read.

    Raises:
        ValueError: a chunk of a PNG is longer than the file.
    """
    try:
        if data.startswith(JPEG):
            return Header(size=_jpeg_size(data))
        if data.startswith(PNG):
            return _png(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
        if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            return _tiff(data)
        if data.startswith(b"BM"):
            width, height = struct.unpack_from("<ii", data, 18)
            return Header(size=(width, abs(height)))
        if data.startswith(JPEG2000) and (start := data.find(JPEG2000[1])) >= 0:
            right, bottom, left, top = struct.unpack_from(">4I", data, start + 8)
            return Header(size=(right - left, bottom - top))
        return _pnm_file(data)
    except _DAMAGE:
        return Header()


def jpeg_end(data: bytes) -> int:
    """The offset where a JPEG ends: behind the first end marker outside of its segments.

    Raises:
        ValueError: the JPEG has no end marker.
    """
    for marker, place in _jpeg_markers(data):
        if marker == 0xD9:
            return place
    raise ValueError("the JPEG is truncated")


def _jpeg_markers(data: bytes) -> Iterator[tuple[int, int]]:
    place, search = 2, _MARKER
    while (found := search.search(data, place)) is not None:
        marker, place = found[1][0], found.end()
        search = _MARKER
        yield marker, place
        if marker in _ALONE:
            continue
        if marker == 0xD9 or place + 2 > len(data):
            return
        place += max(2, int.from_bytes(data[place : place + 2]))
        if marker == 0xDA:
            search = _AFTER_SCAN


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    for marker, place in _jpeg_markers(data):
        if marker in _SIZES:
            height, width = struct.unpack_from(">HH", data, place + 3)
            return width, height
    return None


def _png(data: bytes) -> Header:
    width, height, depth, colour = struct.unpack_from(">IIBB", data, 16)
    header = Header(size=(width, height))
    delays: list[float] = []
    for name, start, length in _chunks(data, 8, ">I4s", 4):
        if name == b"IEND":
            break
        if start + length > len(data):  # OpenCV would allocate what the chunk claims, up to 4 GB
            raise ValueError("the PNG is damaged or truncated")
        body = data[start : start + length]
        if name == b"eXIf":
            header = replace(header, orientation=first_orientation(body))
        elif name == b"tRNS" and colour == 0 and length >= 2:
            value = int.from_bytes(body[:2]) & ((1 << depth) - 1)
            header = replace(header, transparent_gray=value * 255 // ((1 << depth) - 1) if depth < 8 else value)
        elif name == b"fcTL" and length >= 24:
            numerator, denominator = struct.unpack_from(">HH", body, 20)
            delays.append(numerator / (denominator or 100))
    return replace(header, pictures=max(1, len(delays)), times_ns=_times(delays))


def _webp(data: bytes) -> Header:
    header = Header()
    delays: list[float] = []
    end = min(len(data), 8 + int.from_bytes(data[4:8], "little"))
    for name, start, length in _chunks(data[:end], 12, "<4sI", 0):
        body = data[start : min(start + length, end)]
        if name == b"VP8X":
            header = replace(
                header,
                size=(int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1),
            )
        elif name == b"EXIF":
            header = replace(header, orientation=first_orientation(body.removeprefix(b"Exif\0\0")))
        elif name == b"ANMF":
            delays.append(int.from_bytes(body[12:15], "little") / 1000)
    return replace(header, pictures=max(1, len(delays)), times_ns=_times(delays))


def _chunks(data: bytes, place: int, layout: str, checksum: int) -> Iterator[tuple[bytes, int, int]]:
    # Name, start and length of each. PNG has the length first and a checksum behind, WebP pads to even lengths.
    while place + 8 <= len(data):
        first, second = struct.unpack_from(layout, data, place)
        name, length = (first, second) if isinstance(first, bytes) else (second, first)
        yield name, place + 8, length
        place += 8 + length + (checksum or length % 2)


def _times(delays_s: list[float]) -> tuple[int, ...]:
    times, now_s = [], 0.0
    for delay_s in delays_s:
        times.append(round(now_s * 1e9))
        now_s += delay_s
    return tuple(times) if now_s and len(times) > 1 else ()


def _tiff(data: bytes) -> Header:
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in (b"+\0", b"\0+")
    pages = list(_tiff_pages(data, order, big))
    if not pages:
        return Header()
    tags = pages[0]
    header = Header(size=(tags.get(256, 0), tags.get(257, 0)), pictures=len(pages))
    deep = tags.get(258, 8) > 8
    extra = tags.get(338, 0)
    if deep and tags.get(262) == _CMYK:
        return replace(header, refusal="its pixels are 16-bit CMYK (expected gray, RGB or RGBA)")
    # libtiff multiplies the colours of 8 bits itself.
    return replace(
        header,
        alpha=extra in (_ASSOCIATED, _UNASSOCIATED),
        premultiplied=extra == _ASSOCIATED or not deep,
    )


def _tiff_pages(data: bytes, order: str, big: bool) -> Iterator[dict[int, int]]:
    entry, count, offset = ("HHQ", "Q", "Q") if big else ("HHI", "H", "I")
    entry_bytes, count_bytes = (20, 8) if big else (12, 2)
    (place,) = struct.unpack_from(order + offset, data, 8 if big else 4)
    seen: set[int] = set()
    while place and place not in seen and len(seen) < _MOST_PAGES:
        seen.add(place)
        try:
            (entries,) = struct.unpack_from(order + count, data, place)
            tags = {}
            for number in range(min(entries, 512)):
                at = place + count_bytes + number * entry_bytes
                tag, kind, values = struct.unpack_from(order + entry, data, at)
                tags[tag] = _tiff_value(data, order, kind, values, at + entry_bytes - (8 if big else 4), big)
            (place,) = struct.unpack_from(order + offset, data, place + count_bytes + entries * entry_bytes)
        except _DAMAGE:
            return
        yield tags


def _tiff_value(data: bytes, order: str, kind: int, values: int, at: int, big: bool) -> int:
    # The first value: SHORT and LONG are what is needed. Several that do not fit are elsewhere.
    layout, size = {3: ("H", 2), 4: ("I", 4)}.get(kind, ("B", 1))
    if values * size > (8 if big else 4):
        (at,) = struct.unpack_from(order + ("Q" if big else "I"), data, at)
    return int(struct.unpack_from(order + layout, data, at)[0])


def _pnm_file(data: bytes) -> Header:
    first, end = _pnm(data, 0)
    starts = [0]
    while end is not None and end < len(data) and len(starts) < _MOST_PAGES:
        start = end
        header, end = _pnm(data, start)
        if header.size is None:
            break
        starts.append(start)
    return replace(first, pictures=len(starts), starts=tuple(starts) if len(starts) > 1 else ())


def _pnm(data: bytes, start: int) -> tuple[Header, int | None]:
    # The header, and where the picture ends if its samples are binary.
    found = _PNM.match(data, start, start + 4096)
    if found is None:
        return Header(), None
    kind, width, height = (int(number) for number in found.groups())
    header, end, white = Header(size=(width, height)), found.end(), 1
    if kind not in (1, 4):
        maximum = _PNM_MAXIMUM.match(data, end, start + 4096)
        if maximum is None:
            return header, None
        end, white = maximum.end(), int(maximum[1])
        scaled = kind in (2, 3) and white < 256  # by OpenCV
        header = header if scaled or white in (0, 255, 65535) else replace(header, white=white)
    if kind < 4:
        return header, None
    row = (width + 7) // 8 if kind == 4 else width * (1 if kind == 5 else 3) * (1 if white < 256 else 2)
    return header, end + 1 + row * height
