"""A scene without a camera: a textured wall that a camera pans over; seed and number decide every pixel."""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..frames import Pixels
from .reader import Grabbed, SourceInfo
from .spec import SyntheticSpec

_CELLS = ((96, 0.5), (24, 0.3), (8, 0.2))
"""Size in pixels of the texture's blobs, and how much of the contrast each size has."""


class SyntheticScene:
    """The pictures of a scene by number.

    Args:
        spec: its size, seed and period.
    """

    def __init__(self, spec: SyntheticSpec) -> None:
        self._spec = spec
        self._reach = max(16, min(spec.width, spec.height) // 2)
        self._texture = _texture(spec.height + self._reach, spec.width + self._reach, spec.seed)

    def picture(self, number: int) -> Pixels:
        """Picture `number`, from 0: uint8 [height, width, 3], a read-only view of the wall."""
        turn = 2 * math.pi * (number % self._spec.period) / self._spec.period
        x = round(self._reach * (0.5 - 0.5 * math.cos(turn)))
        y = round(self._reach * (0.5 + 0.5 * math.sin(2 * turn)))
        return self._texture[y : y + self._spec.height, x : x + self._spec.width]


class SyntheticReader:
    """Reads the scene as a source."""

    def __init__(self, spec: SyntheticSpec) -> None:
        self._scene = SyntheticScene(spec)
        self._numbers: Iterator[int] = iter(range(spec.frames or 2**62))
        self._number = 0
        self._fps = spec.fps
        self.info = SourceInfo(
            backend="synthetic",
            width=spec.width,
            height=spec.height,
            fps=spec.fps,
            frame_count=spec.frames or None,
            finite=spec.frames > 0,
        )

    def grab(self) -> Grabbed | None:
        """See `Reader`."""
        number = next(self._numbers, None)
        if number is None:
            return None
        self._number = number
        return Grabbed(pts_ns=round(number * 1e9 / self._fps))

    def retrieve(self, out: Pixels | None) -> Pixels:
        """See `Reader`."""
        picture = self._scene.picture(self._number)
        if out is None or out.shape != picture.shape:
            return picture
        np.copyto(out, picture)
        return out

    def close(self) -> None:
        """See `Reader`."""


def _texture(height: int, width: int, seed: int) -> Pixels:
    planes = [_plane(height, width, seed * 3 + channel) for channel in range(3)]
    texture = np.stack(planes, axis=-1)  # [H, W, 3]
    texture.flags.writeable = False
    return texture


def _plane(height: int, width: int, seed: int) -> Pixels:
    plane = np.zeros((height, width), np.float32)
    for number, (cell, weight) in enumerate(_CELLS):
        lattice = _noise(height // cell + 2, width // cell + 2, seed * len(_CELLS) + number)
        plane += np.float32(weight) * _enlarge(_enlarge(lattice, height, cell).T, width, cell).T
    levels: Pixels = np.clip(np.rint((plane - 0.5) * 400 + 128), 0, 255).astype(np.uint8)
    return levels


def _enlarge(lattice: npt.NDArray[np.float32], size: int, cell: int) -> npt.NDArray[np.float32]:
    place = np.arange(size)
    low = place // cell
    share = ((place % cell) / np.float32(cell)).astype(np.float32)[:, None]
    return lattice[low] * (1 - share) + lattice[low + 1] * share


def _noise(rows: int, columns: int, seed: int) -> npt.NDArray[np.float32]:
    # A hash of the place, not numpy's generator: its stream may differ between releases. Constants of MurmurHash3.
    y, x = np.meshgrid(np.arange(rows, dtype=np.uint32), np.arange(columns, dtype=np.uint32), indexing="ij")
    value = (x * np.uint32(0x9E3779B1)) ^ (y * np.uint32(0x85EBCA77)) ^ np.uint32(seed * 0xC2B2AE3D % 2**32)
    for factor in (0x85EBCA6B, 0xC2B2AE35):
        value = (value ^ (value >> np.uint32(15))) * np.uint32(factor)
    return ((value ^ (value >> np.uint32(16))) >> np.uint32(8)).astype(np.float32) / np.float32(2**24)
