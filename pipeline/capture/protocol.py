"""What the service and a capture process tell each other: msgpack maps over a socket pair, one message a packet."""

from dataclasses import dataclass

import msgspec

from ..errors import SourceFault

MESSAGE_BYTES = 65536
"""No message is longer."""


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


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base class of all messages."""


class Ready(Message, frozen=True):
    """Child: libraries are loaded, the source is being opened."""


class Opened(Message, frozen=True):
    """Child: the source is open."""

    info: SourceInfo


class Memory(Message, frozen=True):
    """Child: frames lie in new memory from now on; its descriptor comes with the message."""

    generation: int
    slots: int
    slot_bytes: int


class Picture(Message, frozen=True):
    """Child: a frame [height, width, 3] lies in a slot, which is the parent's until it is released.

    `skipped` and `failed` count the frames since the last message that were captured, but discarded or unreadable.
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


class Ended(Message, frozen=True):
    """Child: the source has no more frames. `frames` were captured in all; the rest counts as in `Picture`."""

    frames: int
    skipped: int
    failed: int


class Failed(Message, frozen=True):
    """Child: the source failed; the child ends. With a guess, what was printed may tell the reason better."""

    fault: SourceFault
    message: str
    guess: str | None


class Release(Message, frozen=True):
    """Parent: a slot is free again."""

    generation: int
    slot: int


class Rewind(Message, frozen=True):
    """Parent: open the source again, after it ended."""


FromChild = Ready | Opened | Memory | Picture | Ended | Failed
FromParent = Release | Rewind
