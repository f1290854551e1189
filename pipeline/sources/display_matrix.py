"""Reads how an MP4 or QuickTime file wants its picture rotated or mirrored (its display matrix).

It is needed for mirrored videos: OpenCV asks FFmpeg only for the matrix's rotation angle, which is 180 for a mirror.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import suppress

Matrix = tuple[int, int, int, int]
"""The matrix's elements a, b, c and d: a point (x, y) is shown at (a x + c y, b x + d y). 65536 means 1."""

_MAX_INDEX_BYTES = 2**28
_ORIENTATIONS = {
    (1, 0, 0, 1): 1,
    (-1, 0, 0, 1): 2,
    (-1, 0, 0, -1): 3,
    (1, 0, 0, -1): 4,
    (0, 1, 1, 0): 5,
    (0, 1, -1, 0): 6,
    (0, -1, -1, 0): 7,
    (0, -1, 1, 0): 8,
}


def file_orientation(path: str) -> int | None:
    """The EXIF orientation, 1 to 8, by which the picture of a video file is shown; 1 if the file does not say.

    Only regular files are read: reading from a FIFO would consume its bytes.

    Returns None for a matrix that neither turns by quarters nor mirrors.
    """
    with suppress(OSError, struct.error):
        index = _read_index(path) if os.path.isfile(path) else None  # a pipe can be read once
        matrix = None if index is None else _video_matrix(index)
        if matrix is not None:
            return _ORIENTATIONS.get(_signs(matrix))
    return 1


def _signs(matrix: Matrix) -> Matrix:
    a, b, c, d = ((value > 0) - (value < 0) for value in matrix)
    return a, b, c, d


def _read_index(path: str) -> bytes | None:
    with open(path, "rb") as file:
        while len(head := file.read(8)) == 8:
            length, kind = struct.unpack(">I4s", head)
            body = length - 8
            if length == 1:
                body = int.from_bytes(file.read(8)) - 16
            if kind == b"moov":
                return file.read(body) if 0 <= body <= _MAX_INDEX_BYTES else None
            if body < 0 or not (kind.isalnum() or kind.strip().isalnum()):
                return None  # 0 stands for the rest of the file
            file.seek(body, 1)
    return None


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = 0
    while place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        if length < 8:
            return
        yield kind, data[place + 8 : place + length]
        place += length


def _child(data: bytes, *path: bytes) -> bytes | None:
    for name in path:
        found = next((body for kind, body in _boxes(data) if kind == name), None)
        if found is None:
            return None
        data = found
    return data


def _video_matrix(index: bytes) -> Matrix | None:
    movie = _child(index, b"mvhd")
    for kind, track in _boxes(index):
        handler = _child(track, b"mdia", b"hdlr") if kind == b"trak" else None
        header = _child(track, b"tkhd")
        if handler is not None and handler[8:12] == b"vide" and header is not None:
            own = _matrix(header, 40)
            return own if movie is None else _product(own, _matrix(movie, 36))
    return None


def _matrix(box: bytes, place: int) -> Matrix:
    if box[0] == 1:  # its time fields have 64 bits
        place += 12
    a, b, _, c, d = struct.unpack_from(">5i", box, place)
    return a, b, c, d


def _product(first: Matrix, second: Matrix) -> Matrix:
    a, b, c, d = first
    e, f, g, h = second
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h
