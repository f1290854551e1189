"""The subscribing socket: everything about a subscription but how to wait for it, shared by the two subscribers."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils.monitor import parse_monitor_message

from .curve_keys import load_keys
from .gaps import MAX_CAMERAS, Gap, GapTracker, merge
from .record import Record, make_record
from .wire import EndHeader, FeaturesHeader, HelloHeader, Kind, Message, decode, topic_prefix

MAX_PART_BYTES = 1 << 30
BURST = 1000
"""Messages taken in one call at most: a service that is faster than its subscriber must not hold it for ever."""
SETTLE_S = 0.005
"""How long the newest record waits for one newer still if the queue was full; a full queue refills faster."""
RETRY_S = 1.0
"""Interval of new attempts after the service refused the connection."""
SILENCE_S = 15.0
"""After so long without any message, or three of the service's heartbeats, the link counts as dead: connect anew."""

_MONITOR_ENDPOINT = "inproc://monitor"
_Socket = zmq.Socket[bytes]
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """The keys for a service that encrypts and checks who subscribes, as `zmq.auth.create_certificates` writes them.

    Attributes:
        client_secret_key_file: this client's own key pair; its public key is in the service's list.
        server_public_key_file: the service's public key.
    """

    client_secret_key_file: Path
    server_public_key_file: Path


@dataclass(frozen=True, slots=True)
class Subscription:
    """What is subscribed to, and how.

    Attributes:
        endpoint: where the service publishes.
        cameras: names of cameras; empty for all.
        kinds: kinds of messages.
        latest_only: whether records that are no longer the newest of their camera and kind are skipped.
        curve: keys, or None for a plain connection.
        receive_hwm: messages that wait here at most; with the service's own limit it bounds how old a record can be.
    """

    endpoint: str
    cameras: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = (Kind.FEATURES,)
    latest_only: bool = False
    curve: CurveKeys | None = None
    receive_hwm: int = 8


class Connection:
    """A connected subscription. It belongs to one thread.

    Raises:
        ValueError: the endpoint, a camera's name or a key file cannot be used.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._tracker = GapTracker()
        self._pending: dict[tuple[Kind, str], tuple[Message, tuple[Gap, ...]]] = {}
        self._superseded = 0
        self._cameras_told: tuple[str, ...] | None = None
        self._connected = False
        self._refused = False
        self._retry_at_s = 0.0
        self._heard_at_s = time.monotonic()
        self._silent_for_s = SILENCE_S
        self._context = zmq.Context(io_threads=1)
        try:
            self._monitor = self._context.socket(zmq.PAIR)
            self.socket = self._context.socket(zmq.SUB)
            self._open()
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def receive_nowait(self) -> Record | None:
        """The next record if one is there.

        Raises:
            WireError: a message is malformed or of a newer layout; the next call goes on with the message after it.
        """
        if not self._subscription.latest_only:
            return next((make_record(message, gaps) for message, gaps in self._received()), None)
        has_room = len(self._pending) < MAX_CAMERAS  # else a flood of names would be taken in faster than handed out
        if has_room and self._take_latest() and self._subscription.receive_hwm <= self._superseded < BURST:
            return None  # the queue was full: newer messages are on their way into it until none comes for a while
        self._superseded = 0
        return make_record(*self._pending.pop(next(iter(self._pending)))) if self._pending else None

    def patience_s(self, left_s: float) -> float:
        """Seconds to wait for input, of those left, before asking again; tries again to connect where that is due."""
        if self._pending:
            return SETTLE_S
        self._take_events()
        now_s = time.monotonic()
        if (self._refused and now_s >= self._retry_at_s) or now_s >= self._heard_at_s + self._silent_for_s:
            self._connect_anew(now_s)
        return min(left_s, RETRY_S)

    def silence(self, timeout_s: float) -> str:
        """Why nothing may have come for so long, and what to check."""
        start = f"no message from {self._subscription.endpoint} in {timeout_s:g} s: "
        if self._refused:
            return start + (
                "the service refuses the connection. Check the CURVE keys: this client's public key must be in the "
                "service's list, and the server's public key must be the service's"
            )
        if not self._connected:
            return start + "not connected. Check that the service runs, and that it publishes at this endpoint"
        return start + f"connected, but nothing came. {self._advice()}"

    def close(self) -> None:
        """Close the socket. Idempotent. Records already received stay valid."""
        if not self.socket.closed:
            self.socket.monitor(None, 0)  # first: libzmq's own thread would wait for ever on a monitor nobody reads
        self._context.destroy(linger=0)

    def _open(self) -> None:
        subscription = self._subscription
        _set_options(self.socket, subscription.receive_hwm, ipv6="://[" in subscription.endpoint)
        if subscription.curve:
            _set_curve(self.socket, subscription.curve)
        for prefix in _prefixes(subscription):
            self.socket.setsockopt(zmq.SUBSCRIBE, prefix)
        self._monitor.setsockopt(zmq.RCVHWM, 0)
        self.socket.monitor(_MONITOR_ENDPOINT, zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _REFUSED)
        self._monitor.connect(_MONITOR_ENDPOINT)
        try:
            self.socket.connect(subscription.endpoint)
        except zmq.ZMQError as exc:
            form = "an endpoint is tcp://HOST:PORT or ipc:///PATH"
            raise ValueError(f"cannot connect to {subscription.endpoint!r} ({form}): {exc.strerror}") from exc

    def _connect_anew(self, now_s: float) -> None:
        # libzmq gives up for good once a handshake is refused, though the key may be put on the list later; and it does
        # not notice a link that is dead in the middle.
        with suppress(zmq.ZMQError):
            self.socket.disconnect(self._subscription.endpoint)
        self.socket.connect(self._subscription.endpoint)
        self._retry_at_s = now_s + RETRY_S
        self._heard_at_s = now_s

    def _received(self) -> Iterator[tuple[Message, tuple[Gap, ...]]]:
        for _ in range(BURST):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._heard_at_s = time.monotonic()
            message = decode([frame.buffer for frame in frames])
            if isinstance(message.header, HelloHeader):
                self._silent_for_s = max(SILENCE_S, 3 * message.header.heartbeat_s)
                self._cameras_told = tuple(camera.name for camera in message.header.cameras)
            if self._is_wanted(message):
                yield message, self._gaps(message)

    def _is_wanted(self, message: Message) -> bool:
        wanted = self._subscription
        return message.kind in wanted.kinds and (
            message.kind is Kind.HELLO or not wanted.cameras or message.camera in wanted.cameras
        )

    def _gaps(self, message: Message) -> tuple[Gap, ...]:
        match message.header:
            case FeaturesHeader() as header:
                return self._tracker.before_record(header)
            case EndHeader() as end:
                return self._tracker.before_end(end)
        return ()

    def _take_latest(self) -> int:
        taken = 0
        for message, gaps in self._received():
            taken += 1
            key = (message.kind, message.camera)
            skipped = self._pending.pop(key, None)
            self._pending[key] = (message, merge((*skipped[1], *gaps)) if skipped else gaps)
        self._superseded += taken
        return taken

    def _take_events(self) -> None:
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())["event"]
            self._connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if event != zmq.EVENT_DISCONNECTED:
                self._refused = bool(event & _REFUSED)

    def _advice(self) -> str:
        told = self._cameras_told
        if told is None:
            return "Check that it is a retinad service, and that its cameras run; or it is still loading its model"
        unknown = [camera for camera in self._subscription.cameras if camera not in told]
        if unknown:
            return f"It has no camera {', '.join(unknown)}; it has {', '.join(told) or 'none'}"
        return f"Check that its cameras run (kind `status` tells): {', '.join(told) or 'it has none'}"


def _prefixes(subscription: Subscription) -> Iterator[bytes]:
    yield topic_prefix(Kind.HELLO)  # always: it tells which cameras there are, should no message come
    for kind in subscription.kinds:
        if kind is not Kind.HELLO:
            yield from (topic_prefix(kind, camera) for camera in subscription.cameras or (None,))


def _set_options(socket: _Socket, receive_hwm: int, *, ipv6: bool) -> None:
    socket.setsockopt(zmq.RCVHWM, receive_hwm)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_PART_BYTES)
    # When the service is started anew, 34 ms of messages are lost (measured); with libzmq's own interval, 173 ms.
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, 3000)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
    # No ZMTP heartbeats at this end: while the queue is full libzmq does not read, and a heartbeat's timer that fires
    # then aborts the process (libzmq issues 3937, 4364 and 4767, all open; seen with 4.3.5 when a service died while a
    # subscriber was slow). `hello`, which every service repeats, tells instead whether the link is alive. A service
    # must not ping either, for the same reason; retinad does not.
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 2)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
    socket.setsockopt(zmq.IPV6, int(ipv6))


def _set_curve(socket: _Socket, keys: CurveKeys) -> None:
    client = load_keys(keys.client_secret_key_file)
    socket.curve_publickey = client.public_key
    socket.curve_secretkey = client.secret_key
    socket.curve_serverkey = load_keys(keys.server_public_key_file).public_key
