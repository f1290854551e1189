"""The capabilities of V4L2 nodes: a webcam has several, of which one delivers images and another only metadata."""

import fcntl
import glob
import os
import struct
from contextlib import suppress
from dataclasses import dataclass

_VIDIOC_QUERYCAP = 0x80685600
_CAPABILITY = struct.Struct("16s32s32sIII12x")  # driver, card, bus_info, version, capabilities, device_caps
_DEVICE_CAPS = 0x80000000
_CAPTURE = 0x00000001 | 0x00001000  # with one plane, or with several
_KINDS = (
    (0x00008000 | 0x00004000, "converts images in memory (a codec or scaler)"),
    (0x00000002 | 0x00002000, "shows images"),
    (0x00800000, "delivers metadata only"),
    (0x00000010 | 0x00000040, "delivers teletext or captions"),
    (0x00040000 | 0x00010000, "is a radio or tuner"),
    (0x00100000, "delivers radio samples"),
    (0x10000000, "is a touch panel"),
)


@dataclass(frozen=True, slots=True)
class Capability:
    """The capabilities that a node reports.

    Attributes:
        card: name of the device.
        bus: the device's place on a bus, the same for all nodes of one device.
        flags: the capability flags of this node.
    """

    card: str
    bus: str
    flags: int

    @property
    def captures(self) -> bool:
        """Whether the node delivers images."""
        return bool(self.flags & _CAPTURE)

    def __str__(self) -> str:
        return next((words for flags, words in _KINDS if self.flags & flags), "delivers no images")


def query(path: str) -> Capability | None:
    """The capabilities that a node reports; None if it cannot be queried."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        answer = fcntl.ioctl(descriptor, _VIDIOC_QUERYCAP, bytes(_CAPABILITY.size))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    _, card, bus, _, all_nodes, this_node = _CAPABILITY.unpack(answer)
    flags = this_node if all_nodes & _DEVICE_CAPS else all_nodes
    return Capability(_text(card), _text(bus), flags)


def _text(padded: bytes) -> str:
    return padded.partition(b"\0")[0].decode(errors="replace")


def siblings(path: str, own: Capability) -> list[str]:
    """The nodes of the same device that deliver images, each as its link in by-id if it has one."""
    nodes = sorted(glob.glob("/dev/video*"), key=lambda node: (len(node), node))
    found = []
    for node in nodes:
        other = None if node == path else query(node)
        if other is not None and other.captures and (other.bus, other.card) == (own.bus, own.card):
            found.append(_stable_name(node))
    return found


def _stable_name(node: str) -> str:
    with suppress(OSError):
        for link in sorted(glob.glob("/dev/v4l/by-id/*")):
            if os.path.realpath(link) == node:
                return link
    return node
