"""Reports the connections of a socket as they open, fail and close."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

import zmq
from zmq.utils.monitor import parse_monitor_message

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH


class EventKind(Enum):
    """What happened to a connection."""

    ACCEPTED = auto()
    FAILED = auto()
    DISCONNECTED = auto()


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """An event of a connection.

    Attributes:
        value: the connection's descriptor; of a handshake that failed, the reason, as libzmq numbers it.
    """

    kind: EventKind
    value: int


class Monitor:
    """The events of one socket. libzmq reports the end of a connection before it closes the descriptor.

    `take` may be called on any one thread, and the rest on the thread that uses the socket.

    Args:
        context: the socket's context.
        watched: the socket.
        name: what no other monitor of the context is named.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", watched: "zmq.Socket[bytes]", name: str = "data"
    ) -> None:
        endpoint = f"inproc://monitor-{name}"
        self._watched = watched
        self._pair = context.socket(zmq.PAIR)
        self._pair.setsockopt(zmq.RCVHWM, 0)  # with a limit, a burst of events would block libzmq's own thread
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _FAILED | zmq.EVENT_MONITOR_STOPPED
        watched.monitor(endpoint, events)
        self._pair.connect(endpoint)

    def take(self, within_s: float | None) -> list[ConnectionEvent] | None:
        """Wait for events and take all that have come; None once the monitor is stopped.

        Args:
            within_s: maximum time to wait, in seconds; None waits without a limit.
        """
        if not self._pair.poll(None if within_s is None else round(within_s * 1000)):
            return []
        events = []
        for number, value in self._waiting():
            if number == zmq.EVENT_MONITOR_STOPPED:
                return None
            events.append(ConnectionEvent(_kind(number), value))
        return events

    def stop(self) -> None:
        """Report no more events. Before the socket is closed: libzmq's own thread would block on an unread monitor."""
        self._watched.monitor(None, 0)

    def close(self) -> None:
        """Free the monitor. Nothing may wait in `take` any more."""
        self._pair.close()

    def _waiting(self) -> Iterator[tuple[int, int]]:
        while True:
            try:
                event = parse_monitor_message(self._pair.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            yield event["event"], event["value"]


def _kind(number: int) -> EventKind:
    if number == zmq.EVENT_ACCEPTED:
        return EventKind.ACCEPTED
    return EventKind.DISCONNECTED if number == zmq.EVENT_DISCONNECTED else EventKind.FAILED
