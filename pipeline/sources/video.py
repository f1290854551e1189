"""Video files and network streams, read by OpenCV's FFmpeg backend."""

import os
import time

from ..config import CameraConfig, CaptureMode
from ..errors import SourceError, SourceFault
from . import opencv
from .messages import SourceInfo
from .opencv import Backend, Property, Stream
from .reader import Grabbed, UnreadablePicture
from .redact import redact_url
from .slots import Pixels

_ATTEMPTS = 1000
"""Damaged frames in a row that are gone past: OpenCV fails once for each, and at the end 1000 times in 1 to 13 ms."""
_MOST_FPS = 1000.0
_MOST_FRAMES = 10**9


def open_file(path: str, config: CameraConfig) -> "VideoReader":
    """Open a video file by its name as it is: `%`, `#` and spaces mean nothing.

    Raises:
        SourceError: `UNREADABLE`, `PERMISSION`.
    """
    _check_file(path)
    guess = "it holds no video, or none in a format that this build of FFmpeg knows"
    source = os.path.abspath(path)
    stream = Stream(source, Backend.FFMPEG, _settings(config), path, SourceFault.UNREADABLE, guess)
    return VideoReader(stream, path, network=False)


def open_stream(url: str, config: CameraConfig) -> "VideoReader":
    """Open a network stream.

    Raises:
        SourceError: `CODEC`; FFmpeg tells the real reason on its standard error only.
    """
    opencv.set_rtsp_transport(config.transport)
    name = redact_url(url)
    guess = "it answered with no stream that FFmpeg knows"
    stream = Stream(url, Backend.FFMPEG, _settings(config), name, SourceFault.CODEC, guess)
    return VideoReader(stream, name, network=True, timeout_s=config.stall_timeout_s)


class VideoReader:
    """An open file or stream. Its end is an end only if it is finite; else it is a failure.

    Args:
        stream: what reads it; closed with the reader.
        name: what messages call it.
        network: whether it comes over a network.
        timeout_s: seconds of silence after which a read gives up.
    """

    def __init__(self, stream: Stream, name: str, *, network: bool, timeout_s: float = 0.0) -> None:
        self._stream = stream
        self._timeout_s = timeout_s
        self._name = name
        self._position_ms: float | None = None
        stream.set(Property.AUTO_ORIENTATION, 1)  # its default has changed between OpenCV's releases
        frames = _plausible(stream.get(Property.FRAME_COUNT), _MOST_FRAMES)
        finite = frames is not None or not network
        self.info = SourceInfo(
            backend="ffmpeg",
            width=int(stream.get(Property.WIDTH) or 0),
            height=int(stream.get(Property.HEIGHT) or 0),
            fps=_plausible(stream.get(Property.FPS), _MOST_FPS),
            codec=opencv.fourcc_text(stream.get(Property.FOURCC)),
            frame_count=None if frames is None else int(frames),
            finite=finite,
            live=not finite,
        )

    def grab(self) -> Grabbed | None:
        """See `Reader`."""
        asked_at = time.monotonic()
        for lost in range(_ATTEMPTS):
            if self._stream.grab():
                return Grabbed(self._pts_ns(), lost)
            waited_s = time.monotonic() - asked_at
            if not self.info.finite and waited_s >= 0.9 * self._timeout_s:
                raise SourceError(SourceFault.STALLED, f"{self._name} sent nothing for {waited_s:.0f} s")
        if self.info.finite:
            return None
        raise SourceError(SourceFault.CLOSED, f"{self._name} closed the stream")

    def _pts_ns(self) -> int | None:
        # A stream without times of its own is told to be at 0 for ever.
        before_ms, self._position_ms = self._position_ms, self._stream.get(Property.POSITION_MS)
        return None if self._position_ms in (None, before_ms) else round(self._position_ms * 1e6)

    def retrieve(self, out: Pixels | None) -> Pixels:
        """See `Reader`."""
        pixels = self._stream.retrieve(out)
        if pixels is None:
            raise UnreadablePicture(f"a frame of {self._name} cannot be decoded")
        return pixels

    def close(self) -> None:
        """See `Reader`."""
        self._stream.close()


def _settings(config: CameraConfig) -> dict[Property, int]:
    return {
        Property.OPEN_TIMEOUT_MS: round(config.connect_timeout_s * 1000),
        Property.READ_TIMEOUT_MS: round(config.stall_timeout_s * 1000),
        # Each of FFmpeg's threads but the first holds a frame back.
        Property.THREADS: 1 if config.mode is CaptureMode.LIVE else 4,
    }


def _check_file(path: str) -> None:
    try:
        with open(path, "rb") as file:
            empty = not file.read(1)
    except PermissionError as exc:
        advice = "change its owner or mode"
        raise SourceError(SourceFault.PERMISSION, f"{path} may not be read by this user: {advice}") from exc
    except OSError as exc:
        raise SourceError(SourceFault.UNREADABLE, f"{path} cannot be read: {exc.strerror}") from exc
    if empty:
        raise SourceError(SourceFault.UNREADABLE, f"{path} is empty: it holds no video")


def _plausible(value: float | None, most: float) -> float | None:
    return value if value is not None and 0 < value <= most else None
