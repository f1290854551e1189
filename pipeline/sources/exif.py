"""Reads the EXIF orientation, and turns images by it."""

import struct

import numpy as np

from ..frames import Pixels

_ORIENTATION_TAG = 0x0112


def first_orientation(tiff: bytes) -> int:
    """The orientation in a block of EXIF data without JPEG's prefix: 1 to 8; 1 (upright) if the block has none."""
    try:
        return _first_orientation(tiff)
    except struct.error:
        return 1


def upright(image: Pixels, orientation: int) -> Pixels:
    """The image [H, W, 3] rotated and mirrored as its orientation says; a view."""
    if orientation >= 5:
        image = np.swapaxes(image, 0, 1)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return image


def _first_orientation(tiff: bytes) -> int:
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    (offset,) = struct.unpack_from(f"{order}I", tiff, 4)
    (count,) = struct.unpack_from(f"{order}H", tiff, offset)
    for entry in range(count):
        tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, offset + 2 + 12 * entry)
        if tag == _ORIENTATION_TAG:
            return value if 1 <= value <= 8 else 1
    return 1
