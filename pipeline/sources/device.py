"""V4L2 devices (USB cameras) as a kind of source: by number, by path or by a link to a path."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .spec import SourceKind, SourceSpec

if TYPE_CHECKING:
    from ..config import CameraConfig
    from .reader import Reader


@dataclass(frozen=True, slots=True)
class DeviceSpec(SourceSpec):
    """A V4L2 device by its path, which may be a link (`/dev/v4l/by-id/...`)."""

    path: str

    @property
    def is_live(self) -> bool:
        """See `SourceSpec`."""
        return True

    def load(self, config: "CameraConfig") -> "Callable[[], Reader]":
        """See `SourceSpec`."""
        from .v4l2 import open_device

        return lambda: open_device(self.path, config)


def _parse(text: str) -> DeviceSpec | None:
    if text.isascii() and text.isdigit():
        return DeviceSpec(f"/dev/video{int(text)}")
    return DeviceSpec(text) if text.startswith("/dev/") else None


DEVICE = SourceKind(
    name="a V4L2 device",
    forms=("0", "/dev/video0", "/dev/v4l/by-id/NAME"),
    parse=_parse,
)
