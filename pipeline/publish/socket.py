"""The ZeroMQ socket that records go out by, with everything that keeps slow, hostile and dead peers harmless.

The only file of the pipeline that imports zmq. A socket belongs to the thread that opened it, and nothing here blocks:
an XPUB socket drops for a peer that is too slow, and the `take_` functions only take what is already there.
"""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq
import zmq.auth
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from retinad.client.wire import Buffer

from ..config import CurveConfig, PublishConfig
from ..errors import PublishError
from .endpoints import ipc_path, is_ipv6
from .slow_subscribers import Peers
from .zap import ZAP_ENDPOINT, zap_reply

LINGER_MS = 500
HANDSHAKE_MS = 5000
UNREAD_MS = 5000
"""How long bytes sent by tcp may find no room at the other end, or no answer, until the connection is closed."""
INBOUND_BYTES = 1024
"""Largest message that a peer may send: subscriptions and handshakes are smaller, and libzmq's tree of subscriptions is
as deep as the longest one, and walked by recursion (one of a megabyte was seen to crash a process)."""
BURST = 1000
"""Messages taken in one call at most, so that a flood of them cannot hold the event loop."""

_KEY_BYTES = 32
_MONITOR_ENDPOINT = "inproc://monitor"
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH

_Socket = zmq.Socket[bytes]
_Context = zmq.Context[zmq.Socket[bytes]]


@contextmanager
def open_socket(config: PublishConfig, send_hwm: int) -> Iterator["PublishSocket"]:
    """Bind a socket at all of the config's endpoints; at the end, what waits is sent for half a second at most.

    Raises:
        PublishError: an endpoint cannot be bound, or a key cannot be read.
    """
    context = zmq.Context(io_threads=1)
    try:
        opened = PublishSocket(context, config, send_hwm)
        try:
            opened.bind(config.endpoints)
            yield opened
        finally:
            opened.close()
    finally:
        context.destroy(linger=LINGER_MS)


class PublishSocket:
    """An XPUB socket and its helpers. Make it with `open_socket`.

    Attributes:
        endpoints: where it is bound, with the real port in place of 0.
        accepted: connections accepted so far.
        disconnected: those of them that are gone.
        handshake_failures: those that failed their handshake.
        unauthorized: CURVE clients turned away since their key is not in the list.
        peers: those connected now, and how they read.
    """

    def __init__(self, context: _Context, config: PublishConfig, send_hwm: int) -> None:
        self.endpoints: tuple[str, ...] = ()
        self.accepted = 0
        self.disconnected = 0
        self.handshake_failures = 0
        self.unauthorized = 0
        self.peers = Peers()
        self._owner = threading.get_ident()
        self._keys = _AuthorizedKeys(config.curve.authorized_keys_dir) if config.curve else None
        self._data = context.socket(zmq.XPUB)
        _set_options(self._data, send_hwm)
        if any(is_ipv6(endpoint) for endpoint in config.endpoints):
            self._data.setsockopt(zmq.IPV6, 1)
        if config.curve:
            _set_curve(self._data, config.curve)
        self._access = context.socket(zmq.REP)
        if config.curve:
            self._access.bind(ZAP_ENDPOINT)
        self._monitor = _open_monitor(context, self._data)

    @property
    def keys_error(self) -> str | None:
        """Why the list of authorised keys could not be read again when it was last asked for."""
        return self._keys.error if self._keys else None

    def bind(self, endpoints: tuple[str, ...]) -> None:
        """Bind everywhere, or raise `PublishError`."""
        self.endpoints = tuple(_bind(self._data, endpoint) for endpoint in endpoints)

    def send(self, parts: list[Buffer]) -> None:
        """Send one message. Large parts are not copied, and must never be written again.

        Raises:
            PublishError: the socket cannot send.
        """
        self._check_thread()
        try:
            # Makes libzmq take note of what its peers have read. A send does so once a millisecond at most by itself,
            # and so takes a short queue for full, and drops, although a quick subscriber has emptied it (measured).
            self._data.getsockopt(zmq.EVENTS)
            self._data.send_multipart(parts, flags=zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as exc:
            raise PublishError(f"cannot publish at {', '.join(self.endpoints)}: {exc.strerror}") from exc

    def take_subscriptions(self) -> list[bytes]:
        """The prefixes that peers subscribed to since the last call. Anything else that a peer sends is ignored."""
        self._check_thread()
        return [message[0][1:] for message in _waiting(self._data) if len(message) == 1 and message[0][:1] == b"\x01"]

    def take_events(self) -> None:
        """Count the connections that came and went, and answer those that ask to be let in."""
        self._check_thread()
        for message in _waiting(self._monitor):
            event = parse_monitor_message(message)
            self._count(event["event"], event["value"])
        self.peers.look()
        if self._keys is not None:
            self._answer(self._keys.current())

    def close(self) -> None:
        """Close all but the data socket's last messages, which the context waits for. Idempotent."""
        if not self._data.closed:
            self._data.monitor(None, 0)  # first: libzmq's own thread would wait for ever on a monitor nobody reads
        for socket in (self._monitor, self._access, self._data):
            socket.close()

    def _count(self, event: int, value: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self.peers.came(value)
        elif event == zmq.EVENT_DISCONNECTED:
            self.peers.went(value)
        self.accepted += event == zmq.EVENT_ACCEPTED
        self.disconnected += event == zmq.EVENT_DISCONNECTED
        self.handshake_failures += bool(event & _FAILED)

    def _answer(self, authorized_keys: frozenset[bytes]) -> None:
        # On this thread, since it is rare and cheap: zmq.auth's authenticator would be one more thread, and would not
        # see a key that is added to the folder or taken from it. A handshake waits for one poll more.
        for request in _waiting(self._access):
            reply = zap_reply(request, authorized_keys)
            self.unauthorized += reply[2] != b"200"
            self._access.send_multipart(reply)

    def _check_thread(self) -> None:
        if threading.get_ident() != self._owner:  # libzmq would abort the process, sooner or later
            raise RuntimeError("a publisher is used on the thread that opened it only")


class _AuthorizedKeys:
    """The public keys in a folder, read again when a file comes or goes.

    A folder that cannot be read is an error at the start only; later the keys read last hold, and `error` says why.
    """

    def __init__(self, folder: Path) -> None:
        self.error: str | None = None
        self._folder = folder
        self._read_at_ns = self._changed_at_ns()
        self._keys = self._read()

    def current(self) -> frozenset[bytes]:
        try:
            changed_at_ns = self._changed_at_ns()
            if changed_at_ns != self._read_at_ns:
                self._keys = self._read()
                self._read_at_ns = changed_at_ns
            self.error = None
        except PublishError as exc:
            self.error = str(exc)
        return self._keys

    def _changed_at_ns(self) -> int:
        try:
            return self._folder.stat().st_mtime_ns
        except OSError as exc:
            raise PublishError(f"publish.curve.authorized_keys_dir {self._folder}: {exc.strerror}") from exc

    def _read(self) -> frozenset[bytes]:
        return frozenset(_decoded(_load_key(file)[0], file) for file in sorted(self._folder.glob("*.key")))


def _set_options(socket: _Socket, send_hwm: int) -> None:
    socket.setsockopt(zmq.SNDHWM, send_hwm)
    # No limit on waiting subscriptions: where libzmq stops reading from a peer, and the peer then dies, its heartbeat
    # aborts the process (libzmq issues 4364 and 4767, both open; seen with 4.3.5).
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, INBOUND_BYTES)
    # Every subscription is passed on, so that each new subscriber gets a `hello` at once. XPUB_WELCOME_MSG would send
    # one without our doing, but as a single part: `topic, header, *tensors = recv_multipart()` would fail on it.
    socket.setsockopt(zmq.XPUB_VERBOSE, 1)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    # No heartbeats: libzmq 4.3.5 aborts a subscriber that does not read while its connection is closed, and then finds
    # a ping in what it has still to read (`!_io_error`; seen in a soak, where the heartbeats had closed it). By tcp the
    # kernel closes what is stuck or dead; by ipc a subscriber that stands still keeps its queue until it goes on.
    socket.setsockopt(zmq.HEARTBEAT_IVL, 0)
    socket.setsockopt(zmq.TCP_MAXRT, UNREAD_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 60)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)


def _set_curve(socket: _Socket, curve: CurveConfig) -> None:
    secret_key = _load_key(curve.server_secret_key_file)[1]
    if secret_key is None:
        raise PublishError(f"publish.curve.server_secret_key_file {curve.server_secret_key_file} holds no secret key")
    _decoded(secret_key, curve.server_secret_key_file)
    socket.curve_server = True
    socket.curve_secretkey = secret_key
    socket.zap_domain = b"retinad"
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # nobody gets in while nobody answers


def _load_key(file: Path) -> tuple[bytes, bytes | None]:
    try:
        return zmq.auth.load_certificate(file)
    except (OSError, ValueError) as exc:
        raise PublishError(f"cannot read the CURVE key in {file}: {exc}") from exc
    except IndexError as exc:
        raise PublishError(f"cannot read the CURVE key in {file}: a line has no `=`") from exc


def _decoded(key: bytes, file: Path) -> bytes:
    try:
        decoded = z85.decode(key)
    except (KeyError, ValueError):
        decoded = b""
    if len(decoded) != _KEY_BYTES:
        raise PublishError(f"the key in {file} is no CURVE key: 40 characters of Z85 are")
    return decoded


def _open_monitor(context: _Context, socket: _Socket) -> _Socket:
    monitor = context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.RCVHWM, 0)  # with a limit, a burst of events would hold up libzmq's own thread
    socket.monitor(_MONITOR_ENDPOINT, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _FAILED)
    monitor.connect(_MONITOR_ENDPOINT)
    return monitor


def _bind(socket: _Socket, endpoint: str) -> str:
    # A socket file is made with the process's umask: 0660 lets the service's group subscribe.
    umask = os.umask(0o117) if ipc_path(endpoint) is not None else None
    try:
        socket.bind(endpoint)
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)
    except zmq.ZMQError as exc:
        raise PublishError(f"cannot bind {endpoint}: {_reason(exc)}") from exc
    finally:
        if umask is not None:
            os.umask(umask)


def _reason(error: zmq.ZMQError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "another process has it (`ss -ltnp` shows which); a second service needs other publish.endpoints"
        case errno.ENODEV | errno.EADDRNOTAVAIL:
            return "this machine has no such address; give an IP address or the name of an interface"
        case _:
            return error.strerror


def _waiting(socket: _Socket) -> Iterator[list[bytes]]:
    for _ in range(BURST):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
