"""What the service and a capture process tell each other: msgpack maps over a socket pair, one message a packet."""

import msgspec

from ..errors import SourceFault
from ..sources.reader import SourceInfo

MESSAGE_BYTES = 65536
"""No message is longer."""


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
