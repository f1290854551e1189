"""Writes clouds as binary little-endian PLY, which CloudCompare, MeshLab, Open3D and others read."""

from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from .voxels import VERTEX, Vertices

_TYPES = {"<f4": "float", "|u1": "uchar"}
_AT_ONCE = 1 << 18

_RAMP = np.array(
    [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], np.float64
)  # five colours of matplotlib's viridis


def write_ply(file: BinaryIO, vertices: Vertices, comments: tuple[str, ...] = ()) -> None:
    """Write a cloud: x y z, red green blue, and confidence.

    Args:
        file: open for writing.
        vertices: [N] of `VERTEX`.
        comments: lines of the header.

    Raises:
        OSError: the file cannot be written.
    """
    lines = ["ply", "format binary_little_endian 1.0", *(f"comment {_plain(comment)}" for comment in comments)]
    lines.append(f"element vertex {len(vertices)}")
    lines += [f"property {_TYPES[VERTEX[name].str]} {name}" for name in VERTEX.names or ()]
    file.write("\n".join([*lines, "end_header", ""]).encode("ascii"))
    for begin in range(0, len(vertices), _AT_ONCE):
        file.write(np.ascontiguousarray(vertices[begin : begin + _AT_ONCE]).data)


def ramp(values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Colours [N, 3] for numbers [N], dark to light between the 2nd and the 98th percentile."""
    numbers = values.astype(np.float64)
    if not len(numbers):
        return np.zeros((0, 3), np.uint8)
    low, high = np.percentile(numbers, [2, 98])
    at = np.clip((numbers - low) / max(high - low, 1e-12), 0, 1) * (len(_RAMP) - 1)
    parts = [np.interp(at, np.arange(len(_RAMP)), channel) for channel in _RAMP.T]
    colours: npt.NDArray[np.uint8] = np.rint(np.stack(parts, axis=1)).astype(np.uint8)
    return colours


def _plain(text: str) -> str:
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text)
