"""The `Reader` protocol, which every source implements for the capture process, and the values that it returns."""

from dataclasses import dataclass
from typing import Protocol

from ..errors import SourceError, SourceFault
from ..frames import Pixels


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """Properties that an opened source reports. Containers and drivers are often wrong: treat the numbers as hints.

    Attributes:
        backend: the reader: `ffmpeg`, `v4l2`, `images`, `mjpeg` or `snapshot` (over HTTP), or `synthetic`.
        width: reported width in pixels; each frame has its own size. 0 if only the first frame will show it.
        height: reported height in pixels, likewise.
        fps: reported frames per second, or None.
        codec: four-character code of the codec, or an empty string.
        frame_count: reported number of frames, or None if unknown or endless.
        counted: whether `frame_count` is the number of frames to be shown, rather than an estimate from a duration
            (which may be that of the sound) or the number of stored frames (some of which the container may hide).
        finite: whether the source ends.
        live: whether frames arrive at the source's own pace (a camera); if not, they are read on demand.
        paced: whether the reader itself keeps to the camera's configured `fps`, as a reader that polls does. The field
            `fps` is then that rate.
        notes: differences from what was requested, as sentences for people.
    """

    backend: str
    width: int = 0
    height: int = 0
    fps: float | None = None
    codec: str = ""
    frame_count: int | None = None
    counted: bool = True
    finite: bool = True
    live: bool = False
    paced: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grabbed:
    """A frame that has been read but not decoded.

    Attributes:
        pts_ns: the container's presentation time in nanoseconds, or None.
        lost: number of damaged frames skipped before it.
        monotonic_ns: when it arrived, by `CLOCK_MONOTONIC` in nanoseconds; None if the reader knows no better time than
            the end of `grab`.
    """

    pts_ns: int | None = None
    lost: int = 0
    monotonic_ns: int | None = None


class RefusedError(SourceError):
    """A source cannot be opened, and the library reports no reason, except perhaps on standard error.

    Attributes:
        guess: the most likely reason, used if standard error shows no better one.
    """

    def __init__(self, fault: SourceFault, message: str, guess: str) -> None:
        super().__init__(fault, message)
        self.guess = guess


class UnreadableImage(Exception):
    """One image of a source cannot be decoded; the next one may be fine. The message names it."""


class Reader(Protocol):
    """An open source. Belongs to one thread."""

    info: SourceInfo

    def grab(self) -> Grabbed | None:
        """Wait for the next frame and advance to it. Returns None at the end of the source.

        Raises:
            SourceError: the source failed.
        """

    def retrieve(self, out: Pixels | None) -> Pixels:
        """Decode the grabbed frame: uint8 [height, width, 3], BGR.

        Args:
            out: array to decode into if its shape fits; then the result is `out` itself, else memory of the reader.

        Raises:
            UnreadableImage: this frame cannot be decoded.
        """

    def close(self) -> None:
        """Close the source. Idempotent."""
