"""The only module that imports OpenCV. Translates its errors, and always names the backend that opens a source."""

import math
import os
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import SourceError, SourceFault
from ..frames import Pixels
from . import ffmpeg_log
from .reader import RefusedError

MAX_IMAGE_PIXELS = 2**26
"""Maximum number of pixels per image: 67 megapixels, which take 200 MB."""

if TYPE_CHECKING:
    import cv2
else:
    # OpenCV reads these from the environment of its process, which serves one camera. Set before the import.
    os.environ["OPENCV_LOG_LEVEL"] = "WARNING"
    os.environ["OPENCV_FFMPEG_LOGLEVEL"] = str(ffmpeg_log.LEVEL)  # only warnings and errors reach the service
    os.environ["OPENCV_IO_MAX_IMAGE_PIXELS"] = str(MAX_IMAGE_PIXELS)
    os.environ["OPENCV_FFMPEG_DECODE_ATTEMPTS"] = "1024"  # corrupt packets in a row before a file counts as ended
    import cv2


class CaptureBackend(IntEnum):
    """OpenCV's backends that sources use."""

    FFMPEG = cv2.CAP_FFMPEG
    V4L2 = cv2.CAP_V4L2
    GSTREAMER = cv2.CAP_GSTREAMER


class Property(IntEnum):
    """OpenCV's capture properties that sources use."""

    WIDTH = cv2.CAP_PROP_FRAME_WIDTH
    HEIGHT = cv2.CAP_PROP_FRAME_HEIGHT
    FPS = cv2.CAP_PROP_FPS
    FOURCC = cv2.CAP_PROP_FOURCC
    FRAME_COUNT = cv2.CAP_PROP_FRAME_COUNT
    POSITION_MS = cv2.CAP_PROP_POS_MSEC
    AUTO_ORIENTATION = cv2.CAP_PROP_ORIENTATION_AUTO
    OPEN_TIMEOUT_MS = cv2.CAP_PROP_OPEN_TIMEOUT_MSEC
    READ_TIMEOUT_MS = cv2.CAP_PROP_READ_TIMEOUT_MSEC
    THREADS = cv2.CAP_PROP_N_THREADS


class VideoCapture:
    """An open OpenCV capture.

    Args:
        source: address or path, opened literally.
        backend: OpenCV backend that reads it.
        settings: properties that must be set while it opens.
        name: name for error messages.
        fault: fault to report if it cannot be opened.
        guess: most likely reason for this failure, since OpenCV reports none.

    Raises:
        RefusedError: OpenCV cannot open it.
    """

    def __init__(
        self,
        source: str,
        backend: CaptureBackend,
        settings: Mapping[Property, int],
        name: str,
        fault: SourceFault,
        guess: str,
    ) -> None:
        parameters = [int(number) for pair in settings.items() for number in pair]
        self._name = name
        try:
            self._capture = cv2.VideoCapture(source, int(backend), parameters)
        except cv2.error as exc:
            raise RefusedError(fault, f"{name} cannot be opened", guess) from exc
        if not self._capture.isOpened():
            raise RefusedError(fault, f"{name} cannot be opened", guess)

    def get(self, prop: Property) -> float | None:
        """A property's value, or None if the backend reports none."""
        value = float(self._capture.get(int(prop)))
        return value if math.isfinite(value) else None

    def set(self, prop: Property, value: float) -> bool:
        """Request a property's value. Returns whether the backend claims to have accepted it, which is no guarantee."""
        return bool(self._capture.set(int(prop), value))

    def grab(self) -> bool:
        """Advance to the next frame. Returns False if there is none."""
        try:
            return bool(self._capture.grab())
        except cv2.error as exc:
            raise SourceError(SourceFault.CODEC, f"{self._name} cannot be read: {exc}") from exc

    def retrieve(self, out: Pixels | None) -> Pixels | None:
        """Decode the grabbed frame [H, W, 3] in BGR, into `out` if it fits. Returns None if it cannot be decoded."""
        try:
            found, image = self._capture.retrieve(out)
        except cv2.error as exc:
            raise SourceError(SourceFault.CODEC, f"{self._name} cannot be decoded: {exc}") from exc
        return None if not found else _as_pixels(image)

    def close(self) -> None:
        """Release the capture. Idempotent."""
        self._capture.release()


def has_backend(backend: CaptureBackend) -> bool:
    """Whether this build of OpenCV has a backend."""
    return bool(cv2.videoio_registry.hasBackend(int(backend)))


def loaded_library(name: str) -> str | None:
    """The file of a library that OpenCV has loaded, such as `libavformat`; None if there is none of this name."""
    with open("/proc/self/maps") as maps:
        paths = (line.split(maxsplit=5)[-1].strip() for line in maps)
        return next((path for path in paths if os.path.basename(path).startswith(name)), None)


def set_rtsp_transport(transport: str) -> None:
    """Set the RTSP transport of this process, which reads one source only."""
    os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = f"rtsp_transport;{transport}"


def set_device_timeout(timeout_s: float) -> None:
    """Set how long a read of a V4L2 device waits, rounded up to whole seconds."""
    os.environ["OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT"] = str(math.ceil(timeout_s))


def fourcc_number(text: str) -> int:
    """Convert a four-character code to OpenCV's number."""
    return int.from_bytes(text.encode("ascii"), "little")


def fourcc_text(number: float | None) -> str:
    """Convert OpenCV's number to a four-character code; an empty string if it is none."""
    if number is None or not 0 < number < 2**32:
        return ""
    text = int(number).to_bytes(4, "little").decode("latin-1").rstrip(" \0")
    return text if text.isascii() and text.isprintable() else ""


def decode_image(data: bytes, *, as_stored: bool) -> npt.NDArray[np.generic] | None:
    """Decode an image file. Returns None if it cannot be decoded.

    Args:
        data: the file's bytes.
        as_stored: whether to keep the file's channels, depth and orientation; if not, 8-bit BGR, upright.
    """
    flags = cv2.IMREAD_UNCHANGED if as_stored else cv2.IMREAD_COLOR
    try:
        return cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        return None


def decode_pages(data: bytes, start: int, end: int) -> Sequence[npt.NDArray[np.generic]]:
    """Decode pictures of a file that holds several, as stored: those from `start` to before `end` that can be read."""
    try:
        return cv2.imdecodemulti(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED, None, (start, end))[1]
    except cv2.error:
        return ()


def _as_pixels(image: npt.NDArray[np.generic]) -> Pixels:
    if image.ndim == 2:
        return np.repeat(image.astype(np.uint8, copy=False)[:, :, None], 3, axis=2)
    if image.dtype != np.uint8 or image.shape[2] != 3:
        raise SourceError(SourceFault.CODEC, f"frames are {image.dtype} {image.shape} (expected 3 channels of 8 bits)")
    return image.astype(np.uint8, copy=False)
