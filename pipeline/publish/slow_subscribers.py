"""Which subscribers do not keep up: ZeroMQ does not tell for whom it drops, the kernel tells whose data waits."""

import fcntl
import os
import socket
import struct
import termios
import time
from dataclasses import dataclass

SLOW_S = 3.0
"""A peer for which data waited at every look in this time is slow: one that keeps up has read all in between."""

_CREDENTIALS = struct.Struct("3i")


@dataclass(slots=True)
class _Peer:
    name: str
    waiting_since: float | None = None


class Peers:
    """Watches the connections of a socket, each known by the file descriptor that libzmq names in its events.

    The descriptors are libzmq's: they are only asked, never read from, and one that is closed meanwhile gives nothing.
    """

    def __init__(self) -> None:
        self._peers: dict[int, _Peer] = {}
        self._slow: dict[str, None] = {}

    def came(self, descriptor: int) -> None:
        """A connection was accepted."""
        self._peers[descriptor] = _Peer(_name(descriptor))

    def went(self, descriptor: int) -> None:
        """A connection is gone."""
        self._peers.pop(descriptor, None)

    def look(self) -> None:
        """See for whom data waits. Takes a few microseconds a peer; call it often."""
        now = time.monotonic()
        for descriptor, peer in self._peers.items():
            if not _unsent_bytes(descriptor):
                peer.waiting_since = None
            elif peer.waiting_since is None:
                peer.waiting_since = now
            elif now - peer.waiting_since >= SLOW_S:
                self._slow[peer.name] = None

    def take_slow(self) -> tuple[str, ...]:
        """The peers that were slow since the last call, each once: `host:port`, or `process N` on an ipc endpoint."""
        slow = tuple(self._slow)
        self._slow.clear()
        return slow


def _name(descriptor: int) -> str:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            if copy.family == socket.AF_UNIX:
                raw = copy.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                return f"process {_CREDENTIALS.unpack(raw)[0]}"
            host, port = copy.getpeername()[:2]
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    except OSError:
        return "a peer that is gone"


def _unsent_bytes(descriptor: int) -> int:
    try:
        raw = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(raw, "little")
