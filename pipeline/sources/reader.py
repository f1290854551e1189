"""What every source gives a capture process: the `Reader` protocol, and what an opened source says of itself."""

from dataclasses import dataclass
from typing import Protocol

from ..errors import SourceError, SourceFault
from ..frames import Pixels


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """What an opened source says of itself. Containers and drivers are often wrong: use the numbers as hints.

    Attributes:
        backend: what reads it: `ffmpeg`, `v4l2`, `images` or `synthetic`.
        width: in pixels as reported; each frame has its own size. 0 where only the first frame will tell.
        height: in pixels, likewise.
        fps: frames a second as reported, or None.
        codec: four-character code of the coding, or an empty string.
        frame_count: frames as reported, or None where unknown or endless.
        finite: whether the source ends.
        live: whether frames come when they please (a camera); if not, they are read when they are wanted.
        notes: what differs from what was asked for, as sentences for people.
    """

    backend: str
    width: int = 0
    height: int = 0
    fps: float | None = None
    codec: str = ""
    frame_count: int | None = None
    finite: bool = True
    live: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grabbed:
    """A frame that was reached, and not decoded yet.

    Attributes:
        pts_ns: the container's presentation time in nanoseconds, or None.
        lost: damaged frames that were gone past on the way.
    """

    pts_ns: int | None = None
    lost: int = 0


class RefusedError(SourceError):
    """A source cannot be opened, and the library does not say why, unless on its standard error.

    Attributes:
        guess: the most likely reason, should nothing better be found.
    """

    def __init__(self, fault: SourceFault, message: str, guess: str) -> None:
        super().__init__(fault, message)
        self.guess = guess


class UnreadableImage(Exception):
    """One picture of a source cannot be decoded; the next one may. The message names it."""


class Reader(Protocol):
    """An open source, read by one thread."""

    info: SourceInfo

    def grab(self) -> Grabbed | None:
        """Go on to the next frame, waiting for it; None at the end.

        Raises:
            SourceError: the source failed.
        """

    def retrieve(self, out: Pixels | None) -> Pixels:
        """Decode the frame: uint8 [height, width, 3], BGR.

        Args:
            out: where to put it if its size fits. The result is `out` itself then, else memory of the reader's.

        Raises:
            UnreadablePicture: this frame cannot be decoded.
        """

    def close(self) -> None:
        """Close the source. Idempotent."""
