"""The SUB socket that both subscribers use: sets its options, reconnects, detects gaps and explains silence.

Each subscriber adds only its own way of waiting.
"""

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
"""Maximum number of messages taken from the socket in one call. Without a limit, a service that is faster than its
subscriber could keep one call busy forever."""
SETTLE_S = 0.005
"""Seconds to wait for an even newer record after a full queue was drained; a full queue refills faster than this."""
RETRY_S = 1.0
"""Seconds between connection attempts after the service has refused the connection."""
SILENCE_S = 15.0
"""Seconds without a message after which the link counts as dead and is reconnected. If three heartbeat intervals of
the service are longer, they are used instead."""

_MONITOR_ENDPOINT = "inproc://monitor"
_Socket = zmq.Socket[bytes]
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """The key files for a service that uses CURVE, in the format that `zmq.auth.create_certificates` writes.

    Attributes:
        client_secret_key_file: file with this client's own key pair, whose public key the service must list.
        server_public_key_file: file with the service's public key.
    """

    client_secret_key_file: Path
    server_public_key_file: Path


@dataclass(frozen=True, slots=True)
class Subscription:
    """The settings of a subscription.

    Attributes:
        endpoint: address at which the service publishes.
        cameras: camera names; empty for all cameras.
        kinds: message kinds.
        latest_only: whether to return only the newest waiting record of each camera and kind, and skip older ones.
        curve: keys, or None for a plain connection.
        receive_hwm: receive high-water mark: maximum number of messages queued on this side. This limit and the
            service's own limit bound the age of a record.
    """

    endpoint: str
    cameras: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = (Kind.FEATURES,)
    latest_only: bool = False
    curve: CurveKeys | None = None
    receive_hwm: int = 8


class Connection:
    """A connected subscription. Use it on one thread.

    Raises:
        ValueError: the endpoint, a camera name or a key file is invalid.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._tracker = GapTracker()
        self._pending: dict[tuple[Kind, str], tuple[Message, tuple[Gap, ...]]] = {}
        self._superseded = 0
        self._announced_cameras: tuple[str, ...] | None = None
        self._connected = False
        self._refused = False
        self._mismatch = False
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
        """The next record, or None if none is waiting.

        Raises:
            WireError: a message is malformed or has a newer layout; the next call continues with the next message.
        """
        if not self._subscription.latest_only:
            return next((make_record(message, gaps) for message, gaps in self._received()), None)
        has_room = len(self._pending) < MAX_CAMERAS  # else a flood of camera names fills it faster than calls empty it
        if has_room and self._take_latest() and self._subscription.receive_hwm <= self._superseded < BURST:
            return None  # the queue was full: it is refilling with newer messages, so drain it again first
        self._superseded = 0
        return make_record(*self._pending.pop(next(iter(self._pending)))) if self._pending else None

    def patience_s(self, left_s: float) -> float:
        """Seconds to wait for input before polling again, at most `left_s`. Reconnects first if a reconnect is due."""
        if self._pending:
            return SETTLE_S
        self._take_events()
        now_s = time.monotonic()
        if (self._refused and now_s >= self._retry_at_s) or now_s >= self._heard_at_s + self._silent_for_s:
            self._reconnect(now_s)
        return min(left_s, RETRY_S)

    def refusal(self) -> str | None:
        """Why the service refuses the connection, and what to do; None if it does not."""
        if not self._refused:
            return None
        advice = (
            "Check the CURVE keys: this client's public key must be in the service's list, and the server's public key "
            "on this side must be the service's own key"
        )
        if self._mismatch:
            advice = self._mismatch_advice()
        return f"the service refuses the connection. {advice}"

    def silence(self, timeout_s: float) -> str:
        """The likely reason for receiving nothing, and what to check."""
        start = f"no message from {self._subscription.endpoint} in {timeout_s:g} s: "
        if (refusal := self.refusal()) is not None:
            return start + refusal
        if not self._connected:
            return start + "not connected. Check that the service runs and publishes at this endpoint"
        return start + f"connected, but received nothing. {self._advice()}"

    def close(self) -> None:
        """Close the socket. Idempotent. Records already received stay valid."""
        if not self.socket.closed:
            self.socket.monitor(None, 0)  # first: libzmq's I/O thread would block forever on a monitor left unread
        self._context.destroy(linger=0)

    def _open(self) -> None:
        subscription = self._subscription
        _set_options(self.socket, subscription.receive_hwm, ipv6="://[" in subscription.endpoint)
        if subscription.curve:
            set_curve(self.socket, subscription.curve)
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

    def _reconnect(self, now_s: float) -> None:
        # libzmq never retries after a refused handshake, though the key may be authorized later, and it does not notice
        # a half-open link.
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
                self._announced_cameras = tuple(camera.name for camera in message.header.cameras)
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
            message = parse_monitor_message(self._monitor.recv_multipart())
            event = message["event"]
            self._connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if event != zmq.EVENT_DISCONNECTED:
                self._refused = bool(event & _REFUSED)
                # Kept over retries: where the service closes first, libzmq reports a refusal without its cause.
                if self._refused and message["value"] == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
                    self._mismatch = True
            self._mismatch &= not self._connected

    def _mismatch_advice(self) -> str:
        if self._subscription.curve:
            return "The service does not encrypt, and this client has CURVE keys: connect without them (no `curve`)"
        return (
            "The service encrypts, and this client has no CURVE keys: pass the client's key pair and the service's "
            "public key (`curve=CurveKeys(...)`, or --client-key and --server-key), and have the client's public key "
            "added to the service's authorized keys"
        )

    def _advice(self) -> str:
        announced = self._announced_cameras
        if announced is None:
            return "Check that this is a retinad service and that its cameras run; it may still be loading its model"
        unknown = [camera for camera in self._subscription.cameras if camera not in announced]
        if unknown:
            return f"The service has no camera {', '.join(unknown)}; it has {', '.join(announced) or 'none'}"
        if not announced:
            return "The service has no cameras"
        return f"Check that the service's cameras run (subscribe to kind `status`): {', '.join(announced)}"


def _prefixes(subscription: Subscription) -> Iterator[bytes]:
    yield topic_prefix(Kind.HELLO)  # always: it lists the cameras, for the error message when nothing arrives
    for kind in subscription.kinds:
        if kind is not Kind.HELLO:
            yield from (topic_prefix(kind, camera) for camera in subscription.cameras or (None,))


def _set_options(socket: _Socket, receive_hwm: int, *, ipv6: bool) -> None:
    socket.setsockopt(zmq.RCVHWM, receive_hwm)
    socket.setsockopt(zmq.SNDHWM, 0)  # a SUB socket sends subscriptions: with the default, those beyond 1000 are lost
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_PART_BYTES)
    # A restart of the service loses 34 ms of messages (measured); with libzmq's default interval, 173 ms.
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, 3000)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
    # No ZMTP heartbeats on this side: libzmq does not read while the queue is full, and a heartbeat timer that fires
    # then aborts the process (libzmq issues 3937, 4364 and 4767, all open; seen with 4.3.5 when a service died while a
    # subscriber was slow). The repeated `hello` shows instead that the link is alive. A service must not ping either,
    # for the same reason; retinad does not.
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 2)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
    socket.setsockopt(zmq.IPV6, int(ipv6))


def set_curve(socket: _Socket, keys: CurveKeys) -> None:
    """Load the keys into a client's socket, before it connects.

    Raises:
        ValueError: a key file is invalid.
    """
    client = load_keys(keys.client_secret_key_file)
    socket.curve_publickey = client.public_key
    socket.curve_secretkey = client.secret_key
    socket.curve_serverkey = load_keys(keys.server_public_key_file).public_key


def new_key_pair() -> tuple[bytes, bytes]:
    """A new CURVE key pair: the public key and the secret key, each as 40 Z85 characters."""
    public, secret = zmq.curve_keypair()
    return public, secret
