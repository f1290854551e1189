"""Reads images: folders and globs, one frame of each file, or all pictures of a single file.

Whatever a file contains, a frame is 8-bit BGR: gray is repeated, samples are scaled so that the file's white is 255 (of
16 bits the upper 8 are kept), transparent parts are blended with white, and the EXIF orientation is applied. An image
that is truncated or has floating-point pixels counts as unreadable: it is left out with a line in the log, and the next
one is read. So is an image that claims more than 67 megapixels, or, as PNG, JPEG or JPEG 2000, more pixels than any
real image of its file size: their decoders would fill it up.
"""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..frames import Pixels
from . import opencv
from .exif import upright
from .headers import JPEG, JPEG2000, PNG, Header, jpeg_end, read_header
from .reader import Grabbed, SourceInfo, UnreadableImage
from .redact import printable

FOLDER_FPS = 30.0
"""Images per second in live mode without an fps cap: a folder has no rate of its own."""

_MAX_BYTES = 2**29
_MAX_PIXELS = opencv.MAX_IMAGE_PIXELS
_MAX_PIXELS_PER_BYTE = 1024
"""Maximum number of pixels per byte of a JPEG or JPEG 2000 file. A black JPEG has 170, a gray one 255, as OpenCV writes
them. A black JPEG 2000 can have more, and is left out. PNG's compression reaches 1032 bytes per byte.
"""
_MAX_PNG_PIXELS_PER_BYTE = 8 * 1032
_ROWS = 256


_FRESH_S = 10.0
"""Age in seconds up to which a file that cannot be decoded may be unfinished."""
_SETTLED_S = 1.0
"""Minimum age, in seconds, at which a file is tried a second time."""

_Image = tuple[str, int, int | None]
"""A picture to read: the file, the picture's number in the file, and its time."""


class ImagesReader:
    """Reads images in the order given. If there is only one file, all its pictures are read.

    Args:
        paths: files, at least one.
        patient: whether other programs may still be writing the files. A file that was changed a moment ago and cannot
            be decoded is then tried again after the others.
    """

    def __init__(self, paths: Sequence[str], *, patient: bool = False) -> None:
        self._patient = patient and len(paths) > 1
        self._later: deque[_Image] = deque()
        self._first_only = len(paths) > 1
        self._file: ImageFile | None = None
        self._path, self._number = paths[0], 0
        header = Header() if self._first_only else _header_of(paths[0])
        times_ns = header.times_ns or (None,) * header.pictures
        self._images: Iterator[_Image] = (
            ((path, 0, None) for path in paths)
            if self._first_only
            else ((paths[0], number, pts_ns) for number, pts_ns in enumerate(times_ns))
        )
        self.info = SourceInfo(backend="images", fps=FOLDER_FPS, frame_count=len(paths) * header.pictures)

    def grab(self) -> Grabbed | None:
        """See `Reader`."""
        image = self._next()
        if image is None:
            return None
        self._path, self._number, pts_ns = image
        return Grabbed(pts_ns)

    def _next(self) -> _Image | None:
        for image in self._images:
            if not (self._patient and _is_half_written(image[0])):
                return image
            self._later.append(image)
        if not self._later:
            return None
        image = self._later.popleft()
        time.sleep(max(0.0, _SETTLED_S - _age_s(image[0])))
        return image

    def retrieve(self, out: Pixels | None) -> Pixels:
        """See `Reader`. `out` is not used."""
        try:
            if self._file is None or self._first_only:
                self._file = ImageFile(_read(self._path))
            pixels = self._file.decode(self._number)
        except OSError as exc:
            raise UnreadableImage(f"{self._path}: {exc.strerror}") from exc
        except ValueError as exc:
            raise UnreadableImage(f"{self._path}: {exc}") from exc
        if self._first_only and self._file.pictures > 1:
            more = self._file.pictures - 1
            advice = (
                "a folder or glob gives the first picture of each file; to read all, make the file itself the source"
            )
            sys.stderr.write(printable(f"left out: {self._path}: {more} of its {more + 1} pictures ({advice})\n"))
        return pixels

    def close(self) -> None:
        """See `Reader`."""


def _is_half_written(path: str) -> bool:
    if _age_s(path) > _FRESH_S:
        return False
    try:
        ImageFile(_read(path)).decode()
    except (OSError, ValueError):
        return True
    return False


def _age_s(path: str) -> float:
    try:
        return max(0.0, time.time() - os.stat(path).st_mtime)
    except OSError:
        return math.inf


class ImageFile:
    """An image file in memory.

    Args:
        data: its bytes.

    Attributes:
        pictures: number of pictures in the file.

    Raises:
        ValueError: the file cannot be decoded; the message says why.
    """

    def __init__(self, data: bytes) -> None:
        if not data:
            raise ValueError("the file is empty")
        if len(data) > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES >> 20} MiB")
        if data[:2] in (b"P1", b"P2", b"P3"):
            data += b"\n"  # OpenCV wants something behind the last number
        self._data = data[: jpeg_end(data)] if data.startswith(JPEG) else data
        self._header = read_header(self._data)
        self._animation: Sequence[npt.NDArray[np.generic]] | None = None
        self.pictures = self._header.pictures
        if self._header.refusal:
            raise ValueError(self._header.refusal)
        if self._header.size is not None:
            _check_size(*self._header.size, self._data)

    def decode(self, number: int = 0) -> Pixels:
        """Decode one of the pictures: uint8 [height, width, 3], BGR, C-contiguous.

        Raises:
            ValueError: the picture cannot be decoded; the message says why.
        """
        if self._data.startswith(JPEG):
            return self._jpeg()
        if number and self._header.starts:
            start, end = (*self._header.starts, len(self._data))[number : number + 2]
            return ImageFile(self._data[start:end]).decode()
        image = self._stored(number)
        if image is None:
            which = f"picture {number + 1} of {self.pictures}" if number else "it"
            raise ValueError(f"{which} is not an image that OpenCV can decode, or it is damaged")
        flat = _flat(_eight_bits(_opaque(image, self._header), self._header.white), self._header)
        return np.ascontiguousarray(upright(flat, self._header.orientation))

    def _jpeg(self) -> Pixels:
        image = opencv.decode_image(self._data, as_stored=False)
        if image is None:
            raise ValueError("the JPEG is damaged")
        _check_size(image.shape[1], image.shape[0], self._data)
        return image.astype(np.uint8, copy=False)

    def _stored(self, number: int) -> npt.NDArray[np.generic] | None:
        if number == 0:
            return opencv.decode_image(self._data, as_stored=True)
        if self._data[:2] in (b"II", b"MM"):
            pages = opencv.decode_pages(self._data, number, number + 1)
            return pages[0] if pages else None
        if self._animation is None:  # each frame is drawn over the one before it
            width, height = self._header.size or (_MAX_PIXELS, 1)
            if width * height * self.pictures > 2 * _MAX_PIXELS:
                raise ValueError(f"its {self.pictures} pictures of {width}x{height} do not fit into memory")
            self._animation = opencv.decode_pages(self._data, 0, self.pictures)
        return self._animation[number] if number < len(self._animation) else None


def decode(data: bytes) -> Pixels:
    """Decode the first picture of an image file by this module's rules.

    Returns:
        uint8 [height, width, 3], BGR, C-contiguous.

    Raises:
        ValueError: the file cannot be decoded; the message says why.
    """
    return ImageFile(data).decode()


def _read(path: str) -> bytes:
    if not os.path.isfile(path) and os.path.exists(path):  # half a GiB of a device would be read
        raise ValueError("it is not a regular file")
    with open(path, "rb") as file:
        return file.read(_MAX_BYTES + 1)


def _header_of(path: str) -> Header:
    try:
        return read_header(_read(path))
    except (OSError, ValueError):
        return Header()  # the first frame will report what is wrong


def _check_size(width: int, height: int, data: bytes) -> None:
    pixels = width * height
    if data.startswith((JPEG, *JPEG2000)):
        most = _MAX_PIXELS_PER_BYTE * len(data)
    else:
        most = _MAX_PNG_PIXELS_PER_BYTE * len(data) if data.startswith(PNG) else pixels
    if pixels > _MAX_PIXELS:
        raise ValueError(f"it is larger than {_MAX_PIXELS // 10**6} megapixels: {width}x{height}")
    if pixels > max(most, 2**20):
        raise ValueError(f"it is damaged: {len(data)} bytes are not enough for {width}x{height} pixels")


def _opaque(image: npt.NDArray[np.generic], header: Header) -> npt.NDArray[np.generic]:
    # OpenCV gives gray without its transparency.
    if header.transparent_gray is None or image.ndim != 2:
        return image
    return np.where(image == header.transparent_gray, 2 ** (8 * image.itemsize) - 1, image).astype(image.dtype)


def _eight_bits(image: npt.NDArray[np.generic], white: int | None) -> Pixels:
    if image.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"its pixels are {image.dtype} (expected unsigned 8 or 16 bits)")
    if white is not None:
        levels = np.arange(2 ** (8 * image.itemsize))
        scale = ((np.minimum(levels, white) * 255 + white // 2) // white).astype(np.uint8)
        return scale[image.astype(np.uint16, copy=False)]
    if image.dtype == np.uint8:
        return image.astype(np.uint8, copy=False)
    return (image.astype(np.uint16, copy=False) >> 8).astype(np.uint8)


def _flat(image: Pixels, header: Header) -> Pixels:
    if image.ndim == 2:
        image = image[:, :, None]
    channels = image.shape[2]
    if channels == 1:
        return np.repeat(image, 3, axis=2)
    if channels == 4:
        return _on_white(image, premultiplied=header.premultiplied) if header.alpha else image[:, :, :3]
    if channels != 3:
        raise ValueError(f"it has {channels} channels (expected 1, 3 or 4)")
    return image


def _on_white(image: Pixels, *, premultiplied: bool) -> Pixels:
    flat = np.empty((*image.shape[:2], 3), np.uint8)
    for row in range(0, len(image), _ROWS):  # the whole image at once would take 18 bytes per pixel
        part = image[row : row + _ROWS]
        alpha = part[:, :, 3:].astype(np.uint16)
        if premultiplied:
            flat[row : row + _ROWS] = np.minimum(part[:, :, :3] + (255 - alpha), 255)
            continue
        mixed = part[:, :, :3] * alpha + (255 - alpha) * 255
        flat[row : row + _ROWS] = (mixed + 127) // 255
    return flat
