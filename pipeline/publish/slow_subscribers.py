"""Finds slow subscribers.

ZeroMQ does not report for which subscribers it drops messages, but the kernel knows which connections have unsent data.
"""

import fcntl
import os
import socket
import struct
import termios
import time
from dataclasses import dataclass

from .refusals import UNKNOWN

SLOW_S = 3.0
"""A peer that has unsent data at every check for this many seconds is slow. A peer that keeps up has no unsent data at
some of the checks."""

_CREDENTIALS = struct.Struct("3i")


@dataclass(slots=True)
class _Peer:
    name: str
    waiting_since: float | None = None


class Peers:
    """The open connections of a socket, by the file descriptors that libzmq reports in its events.

    The descriptors belong to libzmq, so they are only queried, never read from. A descriptor that has been closed in
    the meantime counts as having no unsent data.
    """

    def __init__(self) -> None:
        self._peers: dict[int, _Peer] = {}
        self._slow: dict[str, None] = {}

    def add(self, descriptor: int, *, is_open: bool = True) -> str:
        """Watch an accepted connection, and return its name. A connection that is no longer open gets no name: its
        descriptor may belong to another one by now.
        """
        peer = self._peers[descriptor] = _Peer(peer_name(descriptor) if is_open else UNKNOWN)
        return peer.name

    def remove(self, descriptor: int) -> str:
        """Stop watching a closed connection. Returns its name."""
        peer = self._peers.pop(descriptor, None)
        return UNKNOWN if peer is None else peer.name

    def check(self) -> None:
        """Check which peers have unsent data. Takes a few microseconds per peer; call it often."""
        now = time.monotonic()
        for descriptor, peer in self._peers.items():
            if not _unsent_bytes(descriptor):
                peer.waiting_since = None
            elif peer.waiting_since is None:
                peer.waiting_since = now
            elif now - peer.waiting_since >= SLOW_S:
                self._slow[peer.name] = None

    def take_slow(self) -> tuple[str, ...]:
        """Names of the peers that were slow since the last call: `host:port`, or `process N` on an ipc endpoint.

        Each peer is listed once.
        """
        slow = tuple(self._slow)
        self._slow.clear()
        return slow


def host_of(name: str) -> str:
    """The name of a peer without its port."""
    return name.rpartition(":")[0] or name


def peer_name(descriptor: int) -> str:
    """The name of the peer of a connection: `host:port`, or `process N` on an ipc endpoint."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            if copy.family == socket.AF_UNIX:
                raw = copy.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                return f"process {_CREDENTIALS.unpack(raw)[0]}"
            host, port = copy.getpeername()[:2]
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    except OSError:
        return UNKNOWN


def _unsent_bytes(descriptor: int) -> int:
    try:
        raw = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(raw, "little")
