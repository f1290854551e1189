"""The ZeroMQ socket that sends records, with the limits that keep slow, hostile and dead peers harmless.

A socket belongs to the thread that opened it, and nothing here blocks:
an XPUB socket drops messages for a slow peer, and the `take_` functions return only what has already arrived.
"""

import errno
import os
import resource
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import zmq

from retinad.client.curve_keys import encode_key
from retinad.client.query import MAX_PICTURE_BYTES
from retinad.client.wire import Buffer

from ..config import CurveConfig, PublishConfig
from ..errors import PublishError
from .authorized_keys import AuthorizedKeys
from .endpoints import NO_ADDRESS, ipc_path, is_ipv6
from .inbound import InboundWatch
from .monitor import ConnectionEvent, EventKind, Monitor
from .query_socket import QuerySocket
from .refusals import KEY_START, UNKNOWN, Refusal, Refusals
from .secret_key import load_secret_key
from .slow_subscribers import Peers, host_of
from .zap import ZAP_ENDPOINT, ZapRequest, zap_reply

LINGER_MS = 500
HANDSHAKE_MS = 5000
UNREAD_MS = 5000
"""Maximum time, in milliseconds, for which data sent by tcp may stay unread or unacknowledged; then the connection is
closed.
"""
INBOUND_BYTES = 1024
"""Maximum size, in bytes, of a message that a peer may send. Subscriptions and handshakes are smaller. libzmq's tree of
subscriptions is as deep as the longest subscription, and libzmq walks this tree recursively (a subscription of one
megabyte was seen to crash a process)."""
BURST = 1000
"""Maximum number of messages taken in one call, so that a flood of messages cannot block the event loop."""

_KEYS_S = 1.0
"""Seconds between checks of the authorized keys without a handshake, so that the log soon reports problems."""

_REASONS: Mapping[int, str] = MappingProxyType(
    {
        zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "one side uses CURVE keys, the other does not",
        zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "it encrypts for another server key than this service's",
    }
)
"""The reasons of failed handshakes that count as refusals. Others are port scans, health checks, broken connections."""

_Socket = zmq.Socket[bytes]
_Context = zmq.Context[zmq.Socket[bytes]]


@contextmanager
def open_socket(config: PublishConfig, send_hwm: int) -> Iterator["PublishSocket"]:
    """Bind a socket at all endpoints of the config. On exit, queued messages are sent for up to half a second.

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
    """An XPUB socket, with the sockets that authenticate and count its peers. Created by `open_socket`.

    Attributes:
        endpoints: bound endpoints, with the real port in place of 0.
        accepted: number of connections accepted so far.
        disconnected: number of those connections that have been closed.
        handshake_failures: number of those connections whose handshake failed.
        unauthorized: number of CURVE clients refused because their key is not authorized.
        peers: the open connections, with a record of which of them are slow.
        refusals: connections that were refused, for the log.
        queries: the socket for queries, once it is bound; None if the config has no endpoint for them.
    """

    def __init__(self, context: _Context, config: PublishConfig, send_hwm: int) -> None:
        self.endpoints: tuple[str, ...] = ()
        self.accepted = 0
        self.disconnected = 0
        self.handshake_failures = 0
        self.unauthorized = 0
        self.peers = Peers()
        self.refusals = Refusals()
        self._failure: str | None = None
        self._keys_due_s = 0.0
        self._owner = threading.get_ident()
        self._keys = AuthorizedKeys(config.curve.authorized_keys_dir) if config.curve else None
        self._data = context.socket(zmq.XPUB)
        _set_options(self._data, send_hwm)
        if any(is_ipv6(endpoint) for endpoint in config.endpoints):
            self._data.setsockopt(zmq.IPV6, 1)
        if config.curve:
            _set_curve(self._data, config.curve)
        self._access = context.socket(zmq.REP)
        if config.curve:
            self._access.bind(ZAP_ENDPOINT)
        self._context, self._config = context, config
        self.queries: QuerySocket | None = None
        self._monitor = Monitor(context, self._data)
        self._inbound = InboundWatch(self._monitor, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    @property
    def keys_error(self) -> str | None:
        """Why the authorized keys could not be read at the last attempt, or None."""
        return self._keys.error if self._keys else None

    def bind(self, endpoints: tuple[str, ...]) -> None:
        """Bind all endpoints.

        Raises:
            PublishError: an endpoint cannot be bound.
        """
        self.endpoints = tuple(_bind(self._data, endpoint) for endpoint in endpoints)
        if self._config.locate_endpoint is not None:
            self.queries = _open_queries(self._context, self._config, self._config.locate_endpoint)

    def send(self, parts: list[Buffer]) -> None:
        """Send one message. Large parts are not copied, and must never be modified.

        Raises:
            PublishError: the socket cannot send.
        """
        self._check_thread()
        try:
            # Makes libzmq notice what its peers have read. A send alone does so at most once per millisecond, and so
            # drops messages from a short queue that it considers full, although a quick subscriber has emptied it
            # (measured). Asking for the events does so too, but pyzmq then holds the GIL, for as long as a peer floods
            # the service with subscriptions, and nobody could disconnect it.
            self._data.poll(0)
            self._data.send_multipart(parts, flags=zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as exc:
            raise PublishError(f"cannot publish at {', '.join(self.endpoints)}: {exc.strerror}") from exc

    def take_subscriptions(self) -> list[bytes]:
        """Prefixes that peers have subscribed to since the last call. Anything else that a peer sends is ignored."""
        self._check_thread()
        return [message[0][1:] for message in _waiting(self._data) if len(message) == 1 and message[0][:1] == b"\x01"]

    def take_events(self) -> None:
        """Count opened and closed connections, and answer authentication requests."""
        self._check_thread()
        events = self._inbound.take_events()
        last = {event.value: event.kind for event in events if event.kind is not EventKind.FAILED}
        for event in events:
            self._count(event, is_open=last.get(event.value) is EventKind.ACCEPTED)
        self.peers.check()
        cut = self._inbound.take_cut() + (self.queries.take_cut() if self.queries else [])
        for name, reason in cut:
            self.refusals.add(Refusal(name, reason))
        if self._keys is not None:
            self._answer(self._keys)

    def close(self) -> None:
        """Close all sockets; the context still sends the data socket's last messages. Idempotent."""
        if not self._data.closed:
            self._monitor.stop()
        self._inbound.close()
        self._monitor.close()
        if self.queries is not None:
            self.queries.close()
        for socket in (self._access, self._data):
            socket.close()

    def _count(self, event: ConnectionEvent, *, is_open: bool) -> None:
        # A descriptor that was closed meanwhile may belong to another connection by now.
        match event.kind:
            case EventKind.ACCEPTED:
                self.accepted += 1
                self.peers.add(event.value, is_open=is_open)
            case EventKind.FAILED:
                self.handshake_failures += 1
                self._failure = _REASONS.get(event.value)
            case EventKind.DISCONNECTED:
                self.disconnected += 1
                name = self.peers.remove(event.value)
                if self._failure is not None:  # libzmq's thread reports a failure and its end in a row
                    self.refusals.add(Refusal(host_of(name), self._failure))
                    self._failure = None

    def _answer(self, keys: AuthorizedKeys) -> None:
        # On this thread, since it is rare and cheap: zmq.auth's authenticator would need one more thread, and would not
        # see keys that are added to or removed from the folder. A handshake waits for one more poll.
        authorized_keys = None
        for request in _waiting(self._access):
            authorized_keys = keys.current() if authorized_keys is None else authorized_keys
            reply = zap_reply(request, authorized_keys)
            if reply[2] != b"200":
                self.unauthorized += 1
                self._note_refusal(ZapRequest.of(request))
            self._access.send_multipart(reply)
        if time.monotonic() >= self._keys_due_s:
            keys.current()
            self._keys_due_s = time.monotonic() + _KEYS_S

    def _note_refusal(self, request: ZapRequest | None) -> None:
        if request is None:
            self.refusals.add(Refusal(UNKNOWN, "its request for access is malformed"))
        else:
            start = encode_key(request.key)[:KEY_START].decode() if len(request.key) == 32 else None
            self.refusals.add(Refusal(request.peer, "its key is not among the authorized keys", start))

    def _check_thread(self) -> None:
        if threading.get_ident() != self._owner:  # libzmq would abort the process sooner or later
            raise RuntimeError("a publisher must be used on the thread that opened it")


def _open_queries(context: _Context, config: PublishConfig, endpoint: str) -> QuerySocket:
    socket = context.socket(zmq.ROUTER)
    try:
        _set_limits(socket, send_hwm=1000, inbound_bytes=MAX_PICTURE_BYTES)
        socket.setsockopt(zmq.IPV6, int(is_ipv6(endpoint)))
        if config.curve:
            _set_curve(socket, config.curve)
        return QuerySocket(context, socket, _bind(socket, endpoint))
    except BaseException:
        socket.close()
        raise


def _set_options(socket: _Socket, send_hwm: int) -> None:
    _set_limits(socket, send_hwm, INBOUND_BYTES)
    # Every subscription is reported, so that each new subscriber gets a `hello` at once. XPUB_WELCOME_MSG would do so
    # automatically, but as a single part: `topic, header, *tensors = recv_multipart()` would fail on it.
    socket.setsockopt(zmq.XPUB_VERBOSE, 1)


def _set_limits(socket: _Socket, send_hwm: int, inbound_bytes: int) -> None:
    socket.setsockopt(zmq.SNDHWM, send_hwm)
    # No limit on queued subscriptions: if libzmq stops reading from a peer, and the peer then dies, its heartbeat
    # aborts the process (libzmq issues 4364 and 4767, both open; seen with 4.3.5).
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, inbound_bytes)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    # No heartbeats: libzmq 4.3.5 aborts a subscriber that does not read while its connection is closed and then finds a
    # ping among its unread bytes (`!_io_error`; seen in a soak test, where the heartbeats had closed it). With tcp the
    # kernel closes stuck and dead connections; with ipc a stopped subscriber keeps its queue until it resumes.
    socket.setsockopt(zmq.HEARTBEAT_IVL, 0)
    socket.setsockopt(zmq.TCP_MAXRT, UNREAD_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 60)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)


def _set_curve(socket: _Socket, curve: CurveConfig) -> None:
    secret_key = load_secret_key(curve.server_secret_key_file)
    socket.curve_server = True
    socket.curve_secretkey = secret_key
    socket.zap_domain = b"retinad"
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # no client is accepted before its request is answered


def _bind(socket: _Socket, endpoint: str) -> str:
    # A socket file is created with the process's umask: 0660 lets the service's group subscribe.
    umask = os.umask(0o117) if ipc_path(endpoint) is not None else None
    try:
        socket.bind(endpoint)
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)
    except zmq.ZMQError as exc:
        raise PublishError(f"cannot bind {endpoint}: {_reason(exc)}", "endpoints") from exc
    finally:
        if umask is not None:
            os.umask(umask)


def _reason(error: zmq.ZMQError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "another process uses it (`ss -ltnp` shows which); a second service needs its own endpoints"
        case errno.ENODEV | errno.EADDRNOTAVAIL:
            return NO_ADDRESS
        case _:
            return error.strerror


def _waiting(socket: _Socket) -> Iterator[list[bytes]]:
    for _ in range(BURST):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
