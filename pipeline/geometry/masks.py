"""Turns a camera's mask into pixels: where its frames count."""

import numpy as np
import numpy.typing as npt

from ..frames import Size
from ..view_config import Mask

Counts = npt.NDArray[np.bool_]


def counts_of(mask: Mask, size: Size) -> Counts:
    """Where frames of a size (width and height) count: [height, width], false where they are to be ignored."""
    if mask.rows:
        counts = _unpacked(mask)
        sides = zip(counts.shape, size[::-1], strict=True)
        rows, columns = (((np.arange(to) + 0.5) * of / to).astype(int) for of, to in sides)
        stretched: Counts = counts[rows[:, None], columns]
        return stretched
    counts = np.ones(size[::-1], bool)
    for polygon in mask.polygons:
        counts &= ~_inside(np.asarray(polygon, np.float64), size)
    return counts


def _unpacked(mask: Mask) -> Counts:
    width, height = mask.size
    rows = np.frombuffer(mask.rows, np.uint8).reshape(height, -1)
    return np.unpackbits(rows, axis=1, count=width).astype(bool)


def _inside(corners: npt.NDArray[np.float64], size: Size) -> Counts:
    # A pixel is inside if a ray to the right of its centre crosses the outline an odd number of times.
    y, x = np.mgrid[: size[1], : size[0]].astype(np.float64)
    inside = np.zeros(y.shape, bool)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if y0 != y1:
            crosses = (y0 <= y) != (y1 <= y)
            inside ^= crosses & (x < x0 + (y - y0) * (x1 - x0) / (y1 - y0))
    return inside
