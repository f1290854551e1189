"""Opens what lies at a path, by the reader that suits it."""

from ..config import CameraConfig
from .device import open_device
from .images import ImagesReader
from .paths import Device, Pictures, Video, locate
from .reader import Reader
from .video import open_file


def open_path(path: str, config: CameraConfig) -> Reader:
    """Look anew at what lies at a path, and open it.

    Raises:
        SourceError: `MISSING`, `PERMISSION`, `UNREADABLE`, each with what is wrong.
    """
    match locate(path):
        case Pictures(paths):
            return ImagesReader(paths)
        case Video(path):
            return open_file(path, config)
        case Device(path):
            return open_device(path, config)
