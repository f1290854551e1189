"""The publisher: sends records, statuses and hello messages, and counts peers.

A publisher belongs to the event loop's thread, and nothing here blocks.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec

from retinad.client.wire import (
    Buffer,
    EndHeader,
    HelloHeader,
    Kind,
    ModelHeader,
    StatusHeader,
    encode,
    encode_features,
    topic,
)

from ..config import PublishConfig
from ..errors import PublishError
from ..frames import Features
from .encode import features_header, tensor_bytes
from .endpoints import check_endpoints, ipc_lock
from .query_socket import QuerySocket
from .refusals import Refusal
from .socket import PublishSocket, open_socket

HELLO_INTERVAL_S = 0.1
"""Seconds within which all new subscriptions are answered with a single `hello`."""

_HELLO_TOPIC = topic(Kind.HELLO)


@dataclass(frozen=True, slots=True)
class PublisherStatistics:
    """Counters of messages and peers. ZeroMQ does not report which messages it dropped for a slow subscriber.

    Attributes:
        sent_messages: number of messages published, of all kinds.
        sent_bytes: total size of those messages in bytes, counted once regardless of the number of subscribers.
        hello_messages: number of those messages that were `hello`.
        peers: number of open connections (a connection that never finishes its handshake counts for some seconds).
        connections_total: number of connections accepted.
        disconnected_total: number of those connections that have been closed.
        handshake_failures: number of connections whose handshake failed.
        unauthorized: number of CURVE clients refused because their key is not authorized.
        keys_error: which authorized keys could not be read at the last attempt, or None.
        subscriptions_total: number of subscriptions received.
        send_hwm: maximum number of messages queued for one slow subscriber.
    """

    sent_messages: int = 0
    sent_bytes: int = 0
    hello_messages: int = 0
    peers: int = 0
    connections_total: int = 0
    disconnected_total: int = 0
    handshake_failures: int = 0
    unauthorized: int = 0
    keys_error: str | None = None
    subscriptions_total: int = 0
    send_hwm: int = 0


def check_free(config: PublishConfig) -> None:
    """Bind all endpoints for a moment, so that an endpoint in use is found before the slow part of the startup.

    Raises:
        PublishError: for the same reasons as in `Publisher.open`.
    """
    with _bound(config, send_hwm=1):
        pass


@contextmanager
def _bound(config: PublishConfig, send_hwm: int) -> Iterator[PublishSocket]:
    check_endpoints(config)
    with ExitStack() as resources:
        # Closed in reverse order: an endpoint's lock is released only after its socket is closed.
        for endpoint in config.bound:
            resources.enter_context(ipc_lock(endpoint))
        yield resources.enter_context(open_socket(config, send_hwm))


class Publisher:
    """Publishes at the config's endpoints. Use it as a context manager, on one thread.

    Args:
        config: endpoints, queue size, heartbeat and keys.
        model: description of the model for every record; assign `model` to replace it.
        largest_message_bytes: size of the largest record in bytes. `buffer_mb` divided by this size is the maximum
            number of messages in a subscriber's queue (at least 2).
        burst_messages: maximum number of records that are sent at once. The queue has room for this many regardless of
            `buffer_mb`; otherwise a part of each burst would be dropped even for a subscriber that keeps up (measured).
        describe: returns the current content of `hello`; the publisher fills in the fields that it knows itself.
        instance: identifier of this run of the service; None for a random one.
    """

    def __init__(
        self,
        config: PublishConfig,
        *,
        model: ModelHeader,
        largest_message_bytes: int,
        describe: Callable[[], HelloHeader],
        burst_messages: int = 1,
        instance: str | None = None,
    ) -> None:
        self.model = model
        self.instance = instance or secrets.token_hex(8)
        self._config = config
        # libzmq informs a queue's writer about reads once they amount to half the queue's length: with 16 slots, only 9
        # may be known to be free although all 16 are (measured). A burst always fits into a queue of twice its length.
        self._send_hwm = max(2, 2 * burst_messages - 1, config.buffer_mb * (1 << 20) // max(1, largest_message_bytes))
        self._describe = describe
        self._resources = ExitStack()
        self._socket: PublishSocket | None = None
        self._hello_due_s = 0.0
        self._hello_sent_s = float("-inf")
        self._sent_messages = 0
        self._sent_bytes = 0
        self._hello_messages = 0
        self._subscriptions = 0

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Bound endpoints, with the real port in place of 0; empty while the publisher is closed."""
        return self._socket.endpoints if self._socket else ()

    @property
    def queries(self) -> QuerySocket | None:
        """The socket for queries; None if the config has no endpoint for them, or the publisher is closed."""
        return self._socket.queries if self._socket else None

    def open(self) -> None:
        """Bind all endpoints.

        Raises:
            PublishError: an endpoint is in use, cannot be bound or is not secure, or a key cannot be read.
        """
        with ExitStack() as resources:
            self._socket = resources.enter_context(_bound(self._config, self._send_hwm))
            self._resources = resources.pop_all()
        self._hello_due_s = time.monotonic()

    def close(self) -> None:
        """Send queued messages for up to half a second, and unbind. Idempotent."""
        self._socket = None
        self._resources.close()

    def publish_features(
        self,
        features: Features,
        *,
        seq: int,
        dropped_total: int,
        failed_total: int,
        model_done_ns: int,
    ) -> None:
        """Publish one record. Its tensors are sent without a copy, and must never be modified.

        Args:
            features: the model's output for one frame.
            seq: the record's sequence number within its stream epoch, from 0, without gaps.
            dropped_total: number of this camera's frames dropped so far.
            failed_total: number of this camera's frames that yielded no features so far.
            model_done_ns: `time.monotonic_ns()` at the end of the model's step.

        Raises:
            PublishError: the publisher is closed, or the socket cannot send.
            ValueError: a tensor is not C-contiguous, or its dtype is not supported on the wire.
        """
        header = features_header(
            features,
            instance=self.instance,
            model=self.model,
            seq=seq,
            dropped_total=dropped_total,
            failed_total=failed_total,
            model_done_ns=model_done_ns,
        )
        self._send(encode_features(header, [tensor_bytes(tensor) for tensor in features.tensors]))

    def encoded(self, features: Features) -> list[Buffer]:
        """The parts of a message with a record that is not published; they share memory with its tensors.

        Raises:
            ValueError: a tensor is not C-contiguous, or its dtype is not supported on the wire.
        """
        header = features_header(
            features,
            instance=self.instance,
            model=self.model,
            seq=0,
            dropped_total=0,
            failed_total=0,
            model_done_ns=time.monotonic_ns(),
        )
        return encode_features(header, [tensor_bytes(tensor) for tensor in features.tensors])

    def publish_status(self, status: StatusHeader) -> None:
        """Publish a camera's state; `instance` and `publish_unix_ns` are filled in."""
        self._send(encode(msgspec.structs.replace(status, instance=self.instance, publish_unix_ns=time.time_ns())))

    def publish_end(self, end: EndHeader) -> None:
        """Publish the end of a camera; `instance` and `publish_unix_ns` are filled in."""
        self._send(encode(msgspec.structs.replace(end, instance=self.instance, publish_unix_ns=time.time_ns())))

    def publish_hello(self) -> None:
        """Publish `hello` now, for example because the cameras have changed. `poll` repeats `hello`."""
        self._hello_sent_s = time.monotonic()
        self._hello_due_s = self._hello_sent_s + self._config.heartbeat_s
        self._hello_messages += 1
        hello = msgspec.structs.replace(
            self._describe(),
            instance=self.instance,
            publish_unix_ns=time.time_ns(),
            endpoints=self.endpoints,
            heartbeat_s=self._config.heartbeat_s,
        )
        self._send(encode(hello))

    def poll(self) -> None:
        """Authenticate new subscribers, count peers, and send `hello` when due. Cheap; call it about every 50 ms."""
        socket = self._opened()
        socket.take_events()
        subscriptions = socket.take_subscriptions()
        self._subscriptions += len(subscriptions)
        if any(_HELLO_TOPIC.startswith(prefix) for prefix in subscriptions):
            self._hello_due_s = min(self._hello_due_s, self._hello_sent_s + HELLO_INTERVAL_S)
        if time.monotonic() >= self._hello_due_s:
            self.publish_hello()

    @property
    def keys_error(self) -> str | None:
        """Which authorized keys could not be read at the last attempt, and which keys apply; None if all were read."""
        return self._opened().keys_error

    def take_refusals(self) -> dict[Refusal, int]:
        """The kinds of connections that were refused since the last call, and the number of each."""
        return self._opened().refusals.take()

    def take_slow_peers(self) -> tuple[str, ...]:
        """Names of the subscribers that have not kept up since the last call."""
        return self._opened().peers.take_slow()

    def statistics(self) -> PublisherStatistics:
        """Counters since the publisher was opened."""
        socket = self._opened()
        return PublisherStatistics(
            sent_messages=self._sent_messages,
            sent_bytes=self._sent_bytes,
            hello_messages=self._hello_messages,
            peers=socket.accepted - socket.disconnected,
            connections_total=socket.accepted,
            disconnected_total=socket.disconnected,
            handshake_failures=socket.handshake_failures,
            unauthorized=socket.unauthorized,
            keys_error=socket.keys_error,
            subscriptions_total=self._subscriptions,
            send_hwm=self._send_hwm,
        )

    def _send(self, parts: list[Buffer]) -> None:
        self._opened().send(parts)
        self._sent_messages += 1
        self._sent_bytes += sum(len(part) for part in parts)

    def _opened(self) -> PublishSocket:
        if self._socket is None:
            raise PublishError("the publisher is closed")
        return self._socket
