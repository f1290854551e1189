"""Folders and globs of pictures, one frame each.

Whatever a file holds, a frame is 8-bit BGR: gray is repeated; of 16 bits the upper 8 are kept; transparent parts lie on
white; the orientation that a camera noted (EXIF) is applied. A picture that is cut short, or has floating-point pixels,
counts as unreadable: it is left out with a line in the log, and the others go on.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from . import opencv
from .exif import orientation, upright
from .messages import SourceInfo
from .reader import Grabbed, UnreadablePicture
from .slots import Pixels

FOLDER_FPS = 30.0
"""Pictures a second in live mode without an fps cap: a folder has no rate of its own."""

_MOST_BYTES = 2**29


class ImagesReader:
    """Reads pictures in the order given.

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
        """See `Reader`; `out` is not used."""
        try:
            with open(self._path, "rb") as file:
                return decode(file.read(_MOST_BYTES + 1))
        except OSError as exc:
            raise UnreadablePicture(f"{self._path}: {exc.strerror}") from exc
        except ValueError as exc:
            raise UnreadablePicture(f"{self._path}: {exc}") from exc

    def close(self) -> None:
        """See `Reader`."""


def decode(data: bytes) -> Pixels:
    """Decode a picture file by this file's rules.

    Returns:
        uint8 [height, width, 3], BGR, C-contiguous.

    Raises:
        ValueError: it cannot be decoded; the message says why.
    """
    if not data:
        raise ValueError("the file is empty")
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MiB")
    if data.startswith(b"\xff\xd8"):
        return _jpeg(data)
    image = opencv.decode_picture(data, as_stored=True)
    if image is None:
        raise ValueError("it is no picture that OpenCV can decode, or it is damaged")
    return np.ascontiguousarray(upright(_flat(_eight_bits(image)), orientation(data)))


def _jpeg(data: bytes) -> Pixels:
    # libjpeg fills what is missing with gray and only warns. After the last scan's start comes the end marker.
    if b"\xff\xd9" not in data[data.rfind(b"\xff\xda") :]:
        raise ValueError("the JPEG is cut short")
    image = opencv.decode_picture(data, as_stored=False)
    if image is None:
        raise ValueError("the JPEG is damaged")
    return image.astype(np.uint8, copy=False)


def _eight_bits(image: npt.NDArray[np.generic]) -> Pixels:
    if image.dtype == np.uint8:
        return image.astype(np.uint8, copy=False)
    if image.dtype == np.uint16:
        return (image.astype(np.uint16, copy=False) >> 8).astype(np.uint8)
    raise ValueError(f"its pixels are {image.dtype}: 8 or 16 bits unsigned are read")


def _flat(image: Pixels) -> Pixels:
    if image.ndim == 2:
        image = image[:, :, None]
    channels = image.shape[2]
    if channels == 1:
        return np.repeat(image, 3, axis=2)
    if channels == 4:
        return _on_white(image)
    if channels != 3:
        raise ValueError(f"it has {channels} channels: 1, 3 or 4 are read")
    return image


def _on_white(image: Pixels) -> Pixels:
    alpha = image[:, :, 3:].astype(np.uint16)
    mixed = image[:, :, :3] * alpha + (255 - alpha) * 255
    return ((mixed + 127) // 255).astype(np.uint8)
