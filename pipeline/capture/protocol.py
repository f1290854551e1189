"""Messages between the service and a capture process: msgpack arrays over a socket pair, one message per packet."""

from dataclasses import replace

import msgspec

from ..config import CameraConfig
from ..errors import SourceFault
from ..frames import CropPlace
from ..sources.reader import SourceInfo
from ..view_config import ViewConfig

MAX_PACKET_BYTES = 65536
"""Maximum size of a message in bytes."""


class CaptureMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base class of all messages."""


class Ready(CaptureMessage, frozen=True):
    """From the capture process: its libraries are loaded, and it is opening the source."""


class Start(CaptureMessage, frozen=True):
    """From the service: the camera to read. Its source is a field of bytes, since a file name need not be UTF-8."""

    config: CameraConfig
    source: bytes

    @classmethod
    def of(cls, config: CameraConfig) -> "Start":
        """Make the message for a camera, without what only the engine needs to know."""
        return cls(replace(config, source="", view=ViewConfig()), config.source.encode("utf-8", "surrogateescape"))

    @property
    def camera(self) -> CameraConfig:
        """The camera, as it was given to `of`, without its view."""
        return replace(self.config, source=self.source.decode("utf-8", "surrogateescape"))


class Opened(CaptureMessage, frozen=True):
    """From the capture process: the source is open."""

    info: SourceInfo


class FrameMemory(CaptureMessage, frozen=True):
    """From the capture process: later frames are in new shared memory, whose descriptor comes with the message."""

    generation: int
    slots: int
    slot_bytes: int


class FrameReady(CaptureMessage, frozen=True):
    """From the capture process: a slot holds a frame [height, width, 3]. The slot is in use until `Release`.

    `skipped` and `failed` count frames since the last message: those captured and discarded, and the unreadable ones.
    """

    generation: int
    slot: int
    height: int
    width: int
    source_seq: int
    capture_unix_ns: int
    capture_monotonic_ns: int
    pts_ns: int | None
    skipped: int
    failed: int
    crop: CropPlace | None = None


class Ended(CaptureMessage, frozen=True):
    """From the capture process: the source has no more frames.

    `skipped` and `failed` are as in `FrameReady`. `frames` is the total number of frames, including those that the rate
    cap left out.
    """

    frames: int
    skipped: int
    failed: int


class Failed(CaptureMessage, frozen=True):
    """From the capture process: the source failed, and the process waits for `Rewind`.

    If the reason is a guess, the log may show a better one. `counts` is None if the source did not open.
    """

    fault: SourceFault
    message: str
    guess: str | None
    counts: Ended | None = None


class Release(CaptureMessage, frozen=True):
    """From the service: a slot is free again."""

    generation: int
    slot: int


class Rewind(CaptureMessage, frozen=True):
    """From the service: open the source again, after it has ended or failed."""


FromChild = Ready | Opened | FrameMemory | FrameReady | Ended | Failed
FromParent = Release | Rewind
