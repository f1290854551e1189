"""A small reader of binary PLY files, that knows nothing of the writer."""

import struct
from pathlib import Path

LETTERS = {"float": "f", "uchar": "B"}


def read_ply(path: Path) -> tuple[list[dict[str, float]], list[str]]:
    """The vertices of a file, and its comments."""
    data = path.read_bytes()
    header, _, body = data.partition(b"end_header\n")
    lines = header.decode("ascii").split("\n")
    assert lines[:2] == ["ply", "format binary_little_endian 1.0"]
    (count,) = (int(line.split()[2]) for line in lines if line.startswith("element vertex "))
    properties = [line.split()[1:] for line in lines if line.startswith("property ")]
    names = [name for _, name in properties]
    form = struct.Struct("<" + "".join(LETTERS[kind] for kind, _ in properties))
    assert len(body) == count * form.size
    comments = [line.removeprefix("comment ") for line in lines if line.startswith("comment ")]
    return [dict(zip(names, row, strict=True)) for row in form.iter_unpack(body)], comments
