"""Chooses the reader of a source, and opens it. OpenCV is imported only where a source needs it."""

from collections.abc import Callable

from ..config import CameraConfig
from .paths import Device, Pictures, Video, locate
from .reader import Reader
from .spec import DeviceSpec, NetworkSpec, PathSpec, SourceSpec, SyntheticSpec, parse_source


def load_reader(config: CameraConfig) -> Callable[[], Reader]:
    """Import what a source needs and return a function that opens it, as often as wanted.

    Raises:
        SourceError: the source cannot be read as written. The returned function raises it too: it cannot be opened.
    """
    return _opener(parse_source(config.source), config)


def open_path(path: str, config: CameraConfig) -> Reader:
    """Look at what is at a path now, and open it.

    Raises:
        SourceError: `MISSING`, `PERMISSION`, `UNREADABLE`, each with what is wrong.
    """
    match locate(path):
        case Pictures(paths):
            from .images import ImagesReader

            return ImagesReader(paths)
        case Video(path):
            from .video import open_file

            return open_file(path, config)
        case Device(path):
            from .v4l2 import open_device

            return open_device(path, config)


def _opener(spec: SourceSpec, config: CameraConfig) -> Callable[[], Reader]:
    match spec:
        case SyntheticSpec():
            from .synthetic import SyntheticReader

            return lambda: SyntheticReader(spec)
        case NetworkSpec(url):
            from .video import open_stream

            return lambda: open_stream(url, config)
        case DeviceSpec(path):
            from .v4l2 import open_device

            return lambda: open_device(path, config)
        case PathSpec(path):
            locate(path)  # a missing file is told before OpenCV is loaded
            from . import opencv  # noqa: F401  # loaded before the source counts as opened

            return lambda: open_path(path, config)
