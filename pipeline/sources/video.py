"""Video files and network streams, read by OpenCV's FFmpeg backend."""

import os
import sys
import time
from contextlib import ExitStack, closing
from typing import Protocol

from ..config import CameraConfig, CaptureMode
from ..errors import SourceError, SourceFault
from ..frames import Pixels
from . import opencv
from .ffmpeg_log import FFmpegLog
from .opencv import Backend, Property, Stream
from .reader import Grabbed, RefusedError, SourceInfo, UnreadableImage
from .redact import redact_url

_ATTEMPTS = 1000
"""Damaged frames in a row that are gone past: OpenCV fails once for each, and at the end 1000 times in 1 to 13 ms."""
_LOGIN_UNKNOWN = "it asks for a login (401) in no way that FFmpeg knows, which are Basic and Digest"
_MOST_FPS = 1000.0
_MOST_FRAMES = 10**9


def open_file(path: str, config: CameraConfig) -> "VideoReader":
    """Open a video file by its name as it is: `%`, `#` and spaces mean nothing.

    Raises:
        SourceError: `UNREADABLE`, `PERMISSION`, `MISSING`.
    """
    _check_file(path)
    guess = "it holds no video, or none in a format that this build of FFmpeg knows"
    return _open(os.path.abspath(path), config, path, SourceFault.UNREADABLE, guess, network=False)


def open_stream(url: str, config: CameraConfig) -> "VideoReader":
    """Open a network stream.

    Raises:
        SourceError: `CODEC`; FFmpeg tells the real reason on its standard error only.
    """
    opencv.set_rtsp_transport(config.transport)
    return _open(url, config, redact_url(url), SourceFault.CODEC, "it answered with no stream that FFmpeg knows")


def _open(
    source: str, config: CameraConfig, name: str, fault: SourceFault, guess: str, *, network: bool = True
) -> "VideoReader":
    with ExitStack() as opened:
        log = opened.enter_context(closing(FFmpegLog()))
        try:
            stream = Stream(source, Backend.FFMPEG, _settings(config), name, fault, guess)
        except RefusedError as refusal:
            log.catch_up()
            if log.login_unknown:
                raise RefusedError(SourceFault.AUTH, str(refusal), _LOGIN_UNKNOWN) from refusal
            raise
        log.catch_up()
        ends = not network or (config.mode is CaptureMode.LOSSLESS and _is_file(source, log.container))
        reader = VideoReader(stream, log, name, ends=ends, timeout_s=config.stall_timeout_s)
        opened.pop_all()
        return reader


class DecoderLog(Protocol):
    """What a reader hears from FFmpeg's log; see `FFmpegLog`."""

    set_ups: int
    cut_off: bool

    def catch_up(self) -> None:
        """Take in all that was printed until now."""

    def close(self) -> None:
        """Stop listening."""


class VideoReader:
    """An open file or stream. Its end is an end only if it is finite; else it is a failure.

    Args:
        stream: what reads it; closed with the reader.
        log: what FFmpeg prints; closed with the reader.
        name: what messages call it.
        ends: whether it is a file. A stream that announces its length is finite too.
        timeout_s: seconds of silence after which a read gives up.
    """

    def __init__(self, stream: Stream, log: DecoderLog, name: str, *, ends: bool, timeout_s: float = 0.0) -> None:
        self._stream = stream
        self._log = log
        self._set_ups: int | None = None
        self._timeout_s = timeout_s
        self._name = name
        self._position_ms: float | None = None
        stream.set(Property.AUTO_ORIENTATION, 1)  # its default has changed between OpenCV's releases
        frames = _plausible(stream.get(Property.FRAME_COUNT), _MOST_FRAMES)
        finite = ends or frames is not None
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
                self._watch_format()
                return Grabbed(self._pts_ns(), lost)
            waited_s = time.monotonic() - asked_at
            if not self.info.finite and waited_s >= 0.9 * self._timeout_s:
                raise SourceError(SourceFault.STALLED, f"{self._name} sent nothing for {waited_s:.0f} s")
        self._log.catch_up()
        if self.info.finite and not self._log.cut_off:
            return None
        raise SourceError(SourceFault.CLOSED, f"{self._name} closed the stream")

    def _watch_format(self) -> None:
        # Decoders are set up at least once before the first frame, and no more after it.
        self._log.catch_up()
        before, self._set_ups = self._set_ups, self._log.set_ups
        if before in (None, self._set_ups):
            return
        if self.info.live:
            raise SourceError(SourceFault.RESIZED, f"{self._name} goes on in another size or pixel format")
        size = f"{self.info.width}x{self.info.height}"
        sys.stderr.write(f"scaled: {self._name} goes on in another size or pixel format, and is scaled to {size}\n")

    def _pts_ns(self) -> int | None:
        # A stream without times of its own is told to be at 0 for ever.
        before_ms, self._position_ms = self._position_ms, self._stream.get(Property.POSITION_MS)
        return None if self._position_ms in (None, before_ms) else round(self._position_ms * 1e6)

    def retrieve(self, out: Pixels | None) -> Pixels:
        """See `Reader`."""
        pixels = self._stream.retrieve(out)
        if pixels is None:
            raise UnreadableImage(f"a frame of {self._name} cannot be decoded")
        return pixels

    def close(self) -> None:
        """See `Reader`."""
        self._stream.close()
        self._log.close()


def _is_file(url: str, container: str) -> bool:
    # Cameras send pictures in parts (mpjpeg); whatever else a web server sends ends, be its length known or not.
    return url.lower().startswith("http") and container != "mpjpeg"


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
    except FileNotFoundError as exc:
        raise SourceError(SourceFault.MISSING, f"there is no file {path} any more") from exc
    except OSError as exc:
        raise SourceError(SourceFault.UNREADABLE, f"{path} cannot be read: {exc.strerror}") from exc
    if empty:
        raise SourceError(SourceFault.UNREADABLE, f"{path} is empty: it holds no video")


def _plausible(value: float | None, most: float) -> float | None:
    return value if value is not None and 0 < value <= most else None
