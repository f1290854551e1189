"""Limits how much a peer may send: libzmq only limits the size of each message part.

A message of small parts that never ends fills the memory of libzmq, which delivers whole messages only, and every
subscription stays in memory while its connection is open. So the kernel is asked how much each connection has received,
and a connection that has sent too much is cut, which frees the memory of what it sent. This needs a thread of its own,
which learns of connections by itself: libzmq processes subscriptions on the thread that uses the socket, which a flood
of them keeps busy.
"""

import fcntl
import os
import socket
import stat
import struct
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from .monitor import ConnectionEvent, EventKind, Monitor
from .slow_subscribers import host_of, peer_name

LOOK_S = 0.02
SAMPLED_BYTES_S = 10 << 20
"""The rate, in bytes per second since the last check, at which an ipc peer is taken to have sent if bytes from it wait
to be read now. The kernel does not count what a Unix socket receives. libzmq reads about 100 MiB/s, so the faster a
peer sends, the more often bytes wait at a check. Over many checks, the sum is about a tenth of what the peer has
sent."""


@dataclass(frozen=True, slots=True)
class InboundLimits:
    """How much peers may send. The default values are those for subscribers.

    Attributes:
        peer_bytes: maximum number of bytes that one peer may send: enough for 12,000 subscriptions, three for each of
            4,000 cameras. libzmq needs up to 50 times as much memory for them.
        all_bytes: maximum number of bytes that all open connections together may have sent. Beyond that, the largest
            sender is cut.
        forgiven_bytes_s, sampled_forgiven_bytes_s: number of bytes per second that are not counted, on tcp and on ipc:
            a peer may ping, or change its subscriptions now and then. On ipc, where one ping in a thousand is seen and
            counts as 200 KiB, more are forgiven.
    """

    peer_bytes: int = 1 << 20
    all_bytes: int = 8 << 20
    forgiven_bytes_s: int = 32
    sampled_forgiven_bytes_s: int = 1024


SUBSCRIBERS = InboundLimits()

_BYTES_RECEIVED = struct.Struct("=Q")
_BYTES_RECEIVED_AT = 128
"""Offset in bytes of `tcpi_bytes_received` in the kernel's `struct tcp_info`, since Linux 4.1."""


@dataclass(slots=True, eq=False)
class Inbound:
    """Counts what one connection has received. The connection is identified by the descriptor that libzmq uses.

    Attributes:
        limits: say how many bytes are not counted.
        level: number of bytes received, minus those that are not counted.
    """

    descriptor: int
    limits: InboundLimits = SUBSCRIBERS
    level: float = 0.0
    _inode: int = field(init=False)
    _is_tcp: bool = field(init=False)
    _received: int = 0
    _looked_at_s: float = field(default_factory=lambda: time.monotonic())
    _waiting: int = 0

    def __post_init__(self) -> None:
        self._inode = _inode(self.descriptor)
        self._is_tcp = _is_tcp(self.descriptor)

    def forgive(self) -> None:
        """Count from 0 again."""
        self.update()
        self.level = 0.0

    def update(self) -> None:
        """Ask the kernel how many bytes have been received."""
        now_s = time.monotonic()
        forgiven = self.limits.forgiven_bytes_s if self._is_tcp else self.limits.sampled_forgiven_bytes_s
        self.level = max(0.0, self.level - forgiven * (now_s - self._looked_at_s)) + self._new_bytes(now_s)
        self._looked_at_s = now_s

    def cut(self) -> None:
        """Shut the connection down; libzmq then closes it. Does nothing if the descriptor is now another one's."""
        with suppress(OSError), socket.socket(fileno=os.dup(self.descriptor)) as connection:  # it may just have ended
            if self._inode == _inode(connection.fileno()):  # of the copy, which no other thread can close
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, at once
                connection.shutdown(socket.SHUT_RDWR)

    def _new_bytes(self, now_s: float) -> float:
        total = _received_bytes(self.descriptor) if self._is_tcp else None
        if total is None:
            return self._waiting_bytes(now_s)
        new = max(0, total - self._received)
        self._received = total
        return new

    def _waiting_bytes(self, now_s: float) -> float:
        before, self._waiting = self._waiting, _waiting_bytes(self.descriptor)
        if self._waiting in (0, before):  # nothing, or libzmq's thread has not run: nothing new came
            return 0.0
        passed_s = min(now_s - self._looked_at_s, 2 * LOOK_S)  # a late check says little of the time before it
        return max(self._waiting, SAMPLED_BYTES_S * passed_s)


def excess(peers: list[Inbound], limits: InboundLimits = SUBSCRIBERS) -> list[Inbound]:
    """The connections to cut: all above the limit for one peer, and the largest of the others until these are below the
    limit for all peers."""
    over = [peer for peer in peers if peer.level > limits.peer_bytes]
    rest = sorted((peer for peer in peers if peer.level <= limits.peer_bytes), key=lambda peer: peer.level)
    total = sum(peer.level for peer in rest)
    while total > limits.all_bytes:
        total -= rest[-1].level
        over.append(rest.pop())
    return over


class InboundWatch:
    """Watches the open connections in a thread of its own, until the watch is closed.

    The descriptors belong to libzmq: they are only queried and shut down, never read from or closed.

    Args:
        monitor: reports the connections; taken from in the thread alone.
        most_peers: maximum number of open connections. Further ones are cut, since libzmq would spin while the table of
            descriptors is full.
        limits: how much peers may send.
    """

    def __init__(self, monitor: Monitor, most_peers: int, limits: InboundLimits = SUBSCRIBERS) -> None:
        self._limits = limits
        self._monitor = monitor
        self._most_peers = most_peers
        self._peers: dict[int, tuple[str, Inbound]] = {}
        self._look_due_s = 0.0
        self._events: list[ConnectionEvent] = []
        self._cut: list[tuple[str, str]] = []
        self._forgiven: set[int] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="inbound-watch", daemon=True)
        self._thread.start()

    def take_events(self) -> list[ConnectionEvent]:
        """The events of connections since the last call."""
        with self._lock:
            events, self._events = self._events, []
            return events

    def take_cut(self) -> list[tuple[str, str]]:
        """The peers that were cut since the last call: name and reason."""
        with self._lock:
            cut, self._cut = self._cut, []
            return cut

    def forgive(self, descriptor: int) -> None:
        """Count what a peer sends from 0 again, since its message is complete and no longer in libzmq's memory."""
        with self._lock:
            self._forgiven.add(descriptor)

    def close(self) -> None:
        """End the thread, once the monitor is stopped. Idempotent."""
        self._thread.join()

    def _run(self) -> None:
        while self._follow(max(0.0, self._look_due_s - time.monotonic()) if self._peers else None):
            if time.monotonic() >= self._look_due_s:
                self._look_due_s = time.monotonic() + LOOK_S
                self._look()

    def _follow(self, within_s: float | None) -> bool:
        """Wait for events, and apply them. Returns False once the monitor is stopped."""
        events = self._monitor.take(within_s)
        if events is None:
            return False
        opened = dict[int, None]()
        for event in events:
            if event.kind is EventKind.ACCEPTED:
                opened[event.value] = None
            elif event.kind is EventKind.DISCONNECTED:
                opened.pop(event.value, None)
                self._peers.pop(event.value, None)
        for descriptor in opened:
            self._peers[descriptor] = host_of(peer_name(descriptor)), Inbound(descriptor, self._limits)
        with self._lock:
            self._events += events
        return True

    def _look(self) -> None:
        with self._lock:
            forgiven, self._forgiven = self._forgiven, set()
        peers = [inbound for _, inbound in self._peers.values()]
        for inbound in peers:
            if inbound.descriptor in forgiven:
                inbound.forgive()
            else:
                inbound.update()
        too_much = excess(peers, self._limits)
        too_many = [inbound for inbound in peers if inbound not in too_much][self._most_peers :]
        # A connection that ended before it was looked at first is another one's descriptor by now, and has the other
        # one's inode. Its end was reported before the descriptor was closed, so it is known here.
        if (too_much or too_many) and self._follow(0):
            for inbound in too_much:
                self._end(inbound, "it sent too much and was disconnected")
            for inbound in too_many:
                self._end(inbound, f"{self._most_peers} peers are connected, as many as open files allow (ulimit -n)")

    def _end(self, inbound: Inbound, reason: str) -> None:
        name, current = self._peers.get(inbound.descriptor, ("", None))
        if current is inbound:
            inbound.cut()
            del self._peers[inbound.descriptor]
            with self._lock:
                self._cut.append((name, reason))


def _inode(descriptor: int) -> int:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return -1
    return found.st_ino if stat.S_ISSOCK(found.st_mode) else -1


def _is_tcp(descriptor: int) -> bool:
    return _received_bytes(descriptor) is not None


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    # Raises OSError if the descriptor is closed, or no longer a socket. The family matters for addresses only.
    borrowed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()


def _received_bytes(descriptor: int) -> int | None:
    try:
        with _borrowed(descriptor) as connection:
            size = _BYTES_RECEIVED_AT + _BYTES_RECEIVED.size
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    except OSError:
        return None
    if len(info) < _BYTES_RECEIVED_AT + _BYTES_RECEIVED.size:
        return None
    return int(_BYTES_RECEIVED.unpack_from(info, _BYTES_RECEIVED_AT)[0])


def _waiting_bytes(descriptor: int) -> int:
    try:
        raw = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(raw, "little")
