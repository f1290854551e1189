"""The ZeroMQ socket for queries: takes requests and sends answers, with limits on what peers may send.

A socket belongs to the thread that opened it, and nothing here blocks.
"""

import resource
from dataclasses import dataclass

import zmq

from retinad.client.query import MAX_PICTURE_BYTES
from retinad.client.wire import Buffer

from .inbound import InboundLimits, InboundWatch
from .monitor import Monitor

LIMITS = InboundLimits(
    peer_bytes=2 * MAX_PICTURE_BYTES,
    all_bytes=4 * MAX_PICTURE_BYTES,
    forgiven_bytes_s=0,
    sampled_forgiven_bytes_s=0,
)
"""One peer may send two of the largest pictures at once. It is forgiven what it sent with each complete message, and
not with time: a message that never ends would then be cut only if it came fast."""
_BURST = 64
"""Maximum number of requests taken in one call."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Attributes:
        envelope: says where the answer goes.
        parts: what the peer sent.
    """

    envelope: tuple[bytes, ...]
    parts: tuple[bytes, ...]


class QuerySocket:
    """A ROUTER socket whose peers are REQ sockets.

    Args:
        context: the context of the publisher's sockets, in which CURVE clients are authenticated.
        socket: the socket, with its options set and bound.
        endpoint: the bound endpoint.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", socket: "zmq.Socket[bytes]", endpoint: str) -> None:
        self.endpoint = endpoint
        self._socket = socket
        self._monitor = Monitor(context, socket, "query")
        self._inbound = InboundWatch(self._monitor, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4, LIMITS)

    def fileno(self) -> int:
        """A descriptor that may become readable when requests arrive. Take the requests first, then wait."""
        return int(self._socket.getsockopt(zmq.FD))

    def take(self) -> list[Request]:
        """The requests that have arrived; parts of other messages are dropped."""
        requests = []
        for _ in range(_BURST):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            self._inbound.forgive(int(frames[-1].get(zmq.SRCFD)))
            message = [frame.bytes for frame in frames]
            if b"" in message:
                start = message.index(b"") + 1
                requests.append(Request(tuple(message[:start]), tuple(message[start:])))
        self._inbound.take_events()
        return requests

    def take_cut(self) -> list[tuple[str, str]]:
        """The peers that were cut because they sent too much, since the last call: name and reason."""
        return self._inbound.take_cut()

    def answer(self, request: Request, parts: list[Buffer]) -> None:
        """Send the answer to a request; without effect if its peer is gone. Large parts must never be modified."""
        try:
            self._socket.send_multipart([*request.envelope, *parts], flags=zmq.NOBLOCK, copy=False)
        except zmq.ZMQError:  # the peer does not read its answers
            return

    def close(self) -> None:
        """Close the socket. Idempotent."""
        if not self._socket.closed:
            self._monitor.stop()
        self._inbound.close()
        self._monitor.close()
        self._socket.close()
