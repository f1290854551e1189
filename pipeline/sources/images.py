"""Reads folders and globs of images, one frame each.

Whatever a file contains, a frame is 8-bit BGR: gray is repeated, 16 bits keep their upper 8, transparent parts are
blended with white, and the EXIF orientation is applied. An image that is truncated or has floating-point pixels counts
as unreadable: it is left out with a line in the log, and the next one is read. So is an image that claims more than 67
megapixels, or, as JPEG or JPEG 2000, more pixels than any real image of its file size: their decoders would fill it up.
"""

import os
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..frames import Pixels
from . import opencv
from .exif import orientation, upright
from .reader import Grabbed, SourceInfo, UnreadableImage

FOLDER_FPS = 30.0
"""Images per second in live mode without an fps cap: a folder has no rate of its own."""

_MAX_BYTES = 2**29
_MAX_PIXELS_PER_BYTE = 1024
"""A black JPEG has 170, a gray one 255, as OpenCV writes them. A black JPEG 2000 can have more, and is left out."""
_JPEG2000 = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_ROWS = 256


class ImagesReader:
    """Reads images in the order given.

    Args:
        paths: files, at least one.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = iter(paths)
        self._path = ""
        self.info = SourceInfo(backend="images", fps=FOLDER_FPS, frame_count=len(paths))

    def grab(self) -> Grabbed | None:
        """See `Reader`."""
        path = next(self._paths, None)
        if path is None:
            return None
        self._path = path
        return Grabbed()

    def retrieve(self, out: Pixels | None) -> Pixels:
        """See `Reader`. `out` is not used."""
        try:
            if not os.path.isfile(self._path) and os.path.exists(self._path):  # half a GiB of a device would be read
                raise ValueError("it is not a regular file")
            with open(self._path, "rb") as file:
                return decode(file.read(_MAX_BYTES + 1))
        except OSError as exc:
            raise UnreadableImage(f"{self._path}: {exc.strerror}") from exc
        except ValueError as exc:
            raise UnreadableImage(f"{self._path}: {exc}") from exc

    def close(self) -> None:
        """See `Reader`."""


def decode(data: bytes) -> Pixels:
    """Decode an image file by this module's rules.

    Returns:
        uint8 [height, width, 3], BGR, C-contiguous.

    Raises:
        ValueError: the file cannot be decoded; the message says why.
    """
    if not data:
        raise ValueError("the file is empty")
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES >> 20} MiB")
    if data.startswith(b"\xff\xd8"):
        return _jpeg(data)
    if data.startswith(_JPEG2000):
        _check_jpeg2000(data)  # the decoder itself would take 18 bytes per pixel to find out
    image = opencv.decode_image(data, as_stored=True)
    if image is None:
        raise ValueError("it is not an image that OpenCV can decode, or it is damaged")
    return np.ascontiguousarray(upright(_flat(_eight_bits(image)), orientation(data)))


def _jpeg(data: bytes) -> Pixels:
    # libjpeg fills missing parts with gray and only warns. The end marker must follow the start of the last scan.
    if b"\xff\xd9" not in data[data.rfind(b"\xff\xda") :]:
        raise ValueError("the JPEG is truncated")
    image = opencv.decode_image(data, as_stored=False)
    if image is None:
        raise ValueError("the JPEG is damaged")
    _check_size(image.shape[1], image.shape[0], data)
    return image.astype(np.uint8, copy=False)


def _check_jpeg2000(data: bytes) -> None:
    start = data.find(_JPEG2000[1])
    if start < 0 or len(data) < start + 24:
        raise ValueError("the JPEG 2000 is damaged")
    right, bottom, left, top = struct.unpack_from(">4I", data, start + 8)
    _check_size(right - left, bottom - top, data)


def _check_size(width: int, height: int, data: bytes) -> None:
    if width * height > max(_MAX_PIXELS_PER_BYTE * len(data), 2**20):
        raise ValueError(f"it is damaged: {len(data)} bytes are too few for {width}x{height} pixels")


def _eight_bits(image: npt.NDArray[np.generic]) -> Pixels:
    if image.dtype == np.uint8:
        return image.astype(np.uint8, copy=False)
    if image.dtype == np.uint16:
        return (image.astype(np.uint16, copy=False) >> 8).astype(np.uint8)
    raise ValueError(f"its pixels are {image.dtype} (expected unsigned 8 or 16 bits)")


def _flat(image: Pixels) -> Pixels:
    if image.ndim == 2:
        image = image[:, :, None]
    channels = image.shape[2]
    if channels == 1:
        return np.repeat(image, 3, axis=2)
    if channels == 4:
        return _on_white(image)
    if channels != 3:
        raise ValueError(f"it has {channels} channels (expected 1, 3 or 4)")
    return image


def _on_white(image: Pixels) -> Pixels:
    flat = np.empty((*image.shape[:2], 3), np.uint8)
    for row in range(0, len(image), _ROWS):  # the whole image at once would take 18 bytes per pixel
        part = image[row : row + _ROWS]
        alpha = part[:, :, 3:].astype(np.uint16)
        mixed = part[:, :, :3] * alpha + (255 - alpha) * 255
        flat[row : row + _ROWS] = (mixed + 127) // 255
    return flat
