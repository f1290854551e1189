"""The synthetic scene: a textured wall that a virtual camera pans over. Seed and frame number decide every pixel."""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..frames import Pixels
from .reader import Grabbed, SourceInfo

_CELLS = ((96, 0.5), (24, 0.3), (8, 0.2))
"""Size in pixels of the texture's blobs, and the share of the contrast that each size has."""


class SyntheticScene:
    """The images of a scene by number.

    Args:
        width: width of an image in pixels.
        height: height of an image in pixels.
        seed: seed of the texture and the camera's path.
        period: number of images until the camera is back at its start.
    """

    def __init__(self, width: int, height: int, *, seed: int, period: int) -> None:
        self.width = width
        self.height = height
        self._period = period
        self._reach = max(16, min(width, height) // 2)
        self._texture = _texture(height + self._reach, width + self._reach, seed)

    def image(self, number: int) -> Pixels:
        """Image `number`, from 0: uint8 [height, width, 3], a read-only view of the wall."""
        angle = 2 * math.pi * (number % self._period) / self._period
        x = round(self._reach * (0.5 - 0.5 * math.cos(angle)))
        y = round(self._reach * (0.5 + 0.5 * math.sin(2 * angle)))
        return self._texture[y : y + self.height, x : x + self.width]


class SyntheticReader:
    """Reads a scene as a source.

    Args:
        scene: the scene.
        fps: frames per second in live mode.
        frames: number of frames until it ends, or 0 for no end.
    """

    def __init__(self, scene: SyntheticScene, *, fps: float, frames: int) -> None:
        self._scene = scene
        self._numbers: Iterator[int] = iter(range(frames or 2**62))
        self._number = 0
        self._fps = fps
        self.info = SourceInfo(
            backend="synthetic",
            width=scene.width,
            height=scene.height,
            fps=fps,
            frame_count=frames or None,
            finite=frames > 0,
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
        image = self._scene.image(self._number)
        if out is None or out.shape != image.shape:
            return image
        np.copyto(out, image)
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
    position = np.arange(size)
    low = position // cell
    share = ((position % cell) / np.float32(cell)).astype(np.float32)[:, None]
    return lattice[low] * (1 - share) + lattice[low + 1] * share


def _noise(rows: int, columns: int, seed: int) -> npt.NDArray[np.float32]:
    # A hash of the position, not numpy's generator, whose stream may differ between releases. Constants: MurmurHash3.
    y, x = np.meshgrid(np.arange(rows, dtype=np.uint32), np.arange(columns, dtype=np.uint32), indexing="ij")
    value = (x * np.uint32(0x9E3779B1)) ^ (y * np.uint32(0x85EBCA77)) ^ np.uint32(seed * 0xC2B2AE3D % 2**32)
    for factor in (0x85EBCA6B, 0xC2B2AE35):
        value = (value ^ (value >> np.uint32(15))) * np.uint32(factor)
    return ((value ^ (value >> np.uint32(16))) >> np.uint32(8)).astype(np.float32) / np.float32(2**24)
