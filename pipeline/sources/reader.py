"""What a capture process asks of any kind of source, and the choice of the kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..capture.protocol import SourceInfo
from ..config import CameraConfig
from ..errors import SourceError, SourceFault
from ..frames import Pixels
from .parse import DeviceSpec, NetworkSpec, PathSpec, SourceSpec, SyntheticSpec, parse_source


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


class UnreadablePicture(Exception):
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


def load_reader(config: CameraConfig) -> Callable[[], Reader]:
    """Load what a source needs (OpenCV only where it is needed) and return what opens it, as often as wanted.

    Raises:
        SourceError: the source cannot be read as written. The returned function raises it too: it cannot be opened.
    """
    return _opener(parse_source(config.source), config)


def _opener(spec: SourceSpec, config: CameraConfig) -> Callable[[], Reader]:
    match spec:
        case SyntheticSpec():
            from .synthetic import SyntheticReader

            return lambda: SyntheticReader(spec)
        case NetworkSpec(url):
            from .video import open_stream

            return lambda: open_stream(url, config)
        case DeviceSpec(path):
            from .device import open_device

            return lambda: open_device(path, config)
        case PathSpec(path):
            from .paths import locate

            locate(path)  # a missing file is told before OpenCV is loaded
            from .files import open_path

            return lambda: open_path(path, config)
