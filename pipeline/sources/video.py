"""Reads video files and network streams through OpenCV's FFmpeg backend."""

import os
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

from ..config import CameraConfig, CaptureMode
from ..errors import SourceError, SourceFault
from ..frames import Pixels
from . import opencv
from .display_matrix import file_orientation
from .exif import upright
from .ffmpeg_log import FFmpegLog
from .login import parse_challenges, refusal_reason
from .opencv import CaptureBackend, Property, VideoCapture
from .reader import Grabbed, RefusedError, SourceInfo, UnreadableImage
from .redact import printable, redact_url

_ATTEMPTS = 1000
"""Maximum number of damaged frames in a row that are skipped. OpenCV's read fails once for each damaged frame, and
every time at the end of a file (1000 times in 1 to 13 ms).
"""
_MOST_REFUSED = 5
"""Number of frames in a row that FFmpeg does not convert to BGR, after which a source without any good frame is given
up.
"""
_INTERLACED = (
    "is interlaced, which this build of OpenCV cannot decode: set the camera to a progressive mode (1080p instead of"
    " 1080i), or convert the file (ffmpeg -i IN -vf yadif OUT)"
)
_BY_OPENCV = (1, 3, 6, 8)
"""EXIF orientations that OpenCV applies: those without mirroring."""
_SLANTED = "its display matrix neither turns by quarters nor mirrors: frames are as stored"
_LOGIN_UNKNOWN = "it asks for a login (401) that FFmpeg does not know (it knows Basic, and Digest with MD5)"
_COUNTING = frozenset({"avi"})
"""Containers that count the frames to be shown. MP4 counts the stored ones, of which an edit list may hide some; for
Matroska, MPEG-TS and others OpenCV multiplies the duration, which may be that of the sound, by the rate."""
_MAX_FPS = 1000.0
_MAX_FRAMES = 10**9


def open_file(path: str, config: CameraConfig) -> "VideoReader":
    """Open a video file by its literal name: `%`, `#` and spaces have no special meaning.

    Raises:
        SourceError: the file cannot be read (fault `UNREADABLE`, `PERMISSION` or `MISSING`); the message says why.
    """
    _check_file(path)
    guess = "it contains no video, or none in a format that this build of FFmpeg supports"
    source = os.path.abspath(path)
    if printable(source) == source:
        return _open(source, config, path, SourceFault.UNREADABLE, guess, network=False)
    # OpenCV crashes at a name that is not UTF-8. O_PATH: only FFmpeg opens the file itself, which may be a pipe.
    place = os.open(source, os.O_PATH | os.O_CLOEXEC)
    try:
        link = f"/proc/self/fd/{place}"
        return _open(link, config, printable(path), SourceFault.UNREADABLE, guess, network=False)
    finally:
        os.close(place)


def open_stream(url: str, config: CameraConfig) -> "VideoReader":
    """Open a network stream.

    Raises:
        SourceError: the stream cannot be opened (fault `CODEC`). FFmpeg prints the real reason on standard error only.
    """
    opencv.set_rtsp_transport(config.transport)
    return _open(url, config, redact_url(url), SourceFault.CODEC, "its response is not a stream that FFmpeg supports")


def _open(
    source: str, config: CameraConfig, name: str, fault: SourceFault, guess: str, *, network: bool = True
) -> "VideoReader":
    with ExitStack() as opened:
        log = opened.enter_context(closing(FFmpegLog()))
        try:
            capture = VideoCapture(source, CaptureBackend.FFMPEG, _settings(config), name, fault, guess)
        except RefusedError as refusal:
            log.catch_up()
            if log.login_refused:
                reason = refusal_reason(source, parse_challenges(log.logins))
                raise SourceError(SourceFault.AUTH, f"{refusal}: {reason}") from refusal
            if log.login_unknown:
                raise RefusedError(SourceFault.AUTH, str(refusal), _LOGIN_UNKNOWN) from refusal
            raise
        log.catch_up()
        ends = not network or (config.mode is CaptureMode.LOSSLESS and _is_file(source, log.container))
        reader = VideoReader(
            capture,
            log,
            name,
            ends=ends,
            counted=log.container in _COUNTING,
            timeout_s=config.stall_timeout_s,
            orientation=1 if network else file_orientation(source),
        )
        opened.pop_all()
        return reader


class DecoderLog(Protocol):
    """The part of `FFmpegLog` that a reader uses."""

    decoder_setups: int
    refused: int
    torn: int
    complaints: int
    interlaced: bool
    cut_off: bool

    def catch_up(self) -> None:
        """See `FFmpegLog`."""

    def close(self) -> None:
        """See `FFmpegLog`."""


class VideoReader:
    """An open file or stream. The end of a finite source is normal; the end of any other counts as a failure.

    Args:
        capture: the file or stream as opened by OpenCV; closed with the reader.
        log: FFmpeg's log; closed with the reader.
        name: name for error messages.
        ends: whether it is a file. A stream that announces its length is finite too.
        counted: whether its container counts the frames to be shown.
        timeout_s: seconds of silence after which a read gives up.
        orientation: EXIF orientation by which frames are turned, if it has a mirror (OpenCV applies the others); None
            to leave them as they are.
    """

    def __init__(
        self,
        capture: VideoCapture,
        log: DecoderLog,
        name: str,
        *,
        ends: bool,
        counted: bool = True,
        timeout_s: float = 0.0,
        orientation: int | None = 1,
    ) -> None:
        self._capture = capture
        self._log = log
        self._decoder_setups: int | None = None
        self._timeout_s = timeout_s
        self._name = name
        self._position_ms: float | None = None
        self._grabbed = self._converted = False
        self._refused = self._refused_in_a_row = 0
        self._torn = 0
        self._is_torn = False
        by_opencv = orientation in _BY_OPENCV
        self._orientation = 1 if by_opencv or orientation is None else orientation
        capture.set(Property.AUTO_ORIENTATION, int(by_opencv))  # the default has changed between OpenCV releases
        frames = _plausible(capture.get(Property.FRAME_COUNT), _MAX_FRAMES)
        finite = ends or frames is not None
        size = (int(capture.get(Property.WIDTH) or 0), int(capture.get(Property.HEIGHT) or 0))
        width, height = size if self._orientation < 5 else size[::-1]
        self.info = SourceInfo(
            backend="ffmpeg",
            width=width,
            height=height,
            fps=_plausible(capture.get(Property.FPS), _MAX_FPS),
            codec=opencv.fourcc_text(capture.get(Property.FOURCC)),
            frame_count=None if frames is None else int(frames),
            counted=counted,
            finite=finite,
            live=not finite,
            notes=(_SLANTED,) if orientation is None else (),
        )

    def grab(self) -> Grabbed | None:
        """See `Reader`."""
        if self._refused_in_a_row >= _MOST_REFUSED and not (self.info.finite and self._converted):
            raise self._refusal_error()
        started_s, complaints = time.monotonic(), self._log.complaints
        for lost in range(_ATTEMPTS):
            if self._capture.grab():
                self._check_format()
                self._grabbed = True
                return Grabbed(self._pts_ns(), lost)
            waited_s = time.monotonic() - started_s
            if not self.info.finite and waited_s >= 0.9 * self._timeout_s:
                raise SourceError(SourceFault.STALLED, self._silence(waited_s, complaints))
        self._log.catch_up()
        if self.info.finite and not self._log.cut_off:
            self._check_not_empty()
            return None
        raise SourceError(SourceFault.CLOSED, f"{self._name} closed the stream")

    def _silence(self, waited_s: float, complaints: int) -> str:
        # The decoder complains only about data that came.
        self._log.catch_up()
        if self._log.complaints == complaints:
            return f"{self._name} sent nothing for {waited_s:.0f} s"
        return (
            f"{self._name} sent data for {waited_s:.0f} s, but no picture could be decoded (the log has FFmpeg's words)"
        )

    def _check_not_empty(self) -> None:
        if self._refused and not self._converted:
            raise self._refusal_error()
        if not self._grabbed:
            raise RefusedError(SourceFault.UNREADABLE, f"{self._name} cannot be decoded", "not one frame is intact")

    def _check_format(self) -> None:
        # Decoders are set up at least once before the first frame. A setup after it means a change of format.
        self._log.catch_up()
        self._is_torn, self._torn = self._log.torn > self._torn, self._log.torn
        before, self._decoder_setups = self._decoder_setups, self._log.decoder_setups
        if before in (None, self._decoder_setups):
            return
        if self.info.live:
            raise SourceError(SourceFault.RESIZED, f"{self._name} changed its frame size or pixel format")
        size = f"{self.info.width}x{self.info.height}"
        sys.stderr.write(f"scaled: {self._name} changed its frame size or pixel format; frames are scaled to {size}\n")

    def _pts_ns(self) -> int | None:
        # OpenCV reports position 0 for every frame of a stream without timestamps.
        before_ms, self._position_ms = self._position_ms, self._capture.get(Property.POSITION_MS)
        return None if self._position_ms in (None, before_ms) else round(self._position_ms * 1e6)

    def retrieve(self, out: Pixels | None) -> Pixels:
        """See `Reader`."""
        if self._is_torn:
            raise UnreadableImage(f"a frame of {self._name} is damaged: FFmpeg decoded only a part of the JPEG")
        pixels = self._capture.retrieve(out if self._orientation == 1 else None)
        if pixels is None:
            raise UnreadableImage(f"a frame of {self._name} cannot be decoded")
        self._check_converted()
        return upright(pixels, self._orientation) if self._orientation > 1 else pixels

    def _check_converted(self) -> None:
        # OpenCV reports success even if FFmpeg left its memory as it was.
        self._log.catch_up()
        before, self._refused = self._refused, self._log.refused
        if self._refused == before:
            self._converted = True
            self._refused_in_a_row = 0
            return
        self._refused_in_a_row += 1
        raise UnreadableImage(f"a frame of {self._name} {self._refusal()}")

    def _refusal_error(self) -> SourceError:
        return SourceError(SourceFault.CODEC, f"{self._name} {self._refusal()}")

    def _refusal(self) -> str:
        return _INTERLACED if self._log.interlaced else "has a pixel format that FFmpeg does not convert to BGR"

    def close(self) -> None:
        """See `Reader`."""
        self._capture.close()
        self._log.close()


def _is_file(url: str, container: str) -> bool:
    # Cameras send multipart JPEG (mpjpeg). Anything else that a web server sends ends, with or without a known length.
    return url.startswith("http") and container != "mpjpeg"


def _settings(config: CameraConfig) -> dict[Property, int]:
    return {
        Property.OPEN_TIMEOUT_MS: round(config.connect_timeout_s * 1000),
        Property.READ_TIMEOUT_MS: round(config.stall_timeout_s * 1000),
        # Each of FFmpeg's threads beyond the first delays the output by one frame.
        Property.THREADS: 1 if config.mode is CaptureMode.LIVE else 4,
    }


def _check_file(path: str) -> None:
    try:
        if Path(path).is_fifo():
            return  # reading here would consume the first bytes, and closing the pipe would end the writer
        with open(path, "rb") as file:
            empty = not file.read(1)
    except PermissionError as exc:
        raise SourceError(SourceFault.PERMISSION, f"this user may not read {path}: change its owner or mode") from exc
    except FileNotFoundError as exc:
        raise SourceError(SourceFault.MISSING, f"the file {path} no longer exists") from exc
    except OSError as exc:
        raise SourceError(SourceFault.UNREADABLE, f"{path} cannot be read: {exc.strerror}") from exc
    if empty:
        raise SourceError(SourceFault.UNREADABLE, f"{path} is empty: it contains no video")


def _plausible(value: float | None, maximum: float) -> float | None:
    return value if value is not None and 0 < value <= maximum else None
