"""The two public subscribers, one blocking and one for asyncio. Each only adds its way of waiting to a `Connection`.

`AsyncSubscriber` runs on asyncio, and so under anyio's asyncio backend, but not under trio. It waits on the socket's
file descriptor with the loop's own `add_reader`, which needs no dependency. A message is taken off the socket only when
it is returned, so a task that is cancelled while waiting loses nothing.
"""

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from .connection import Connection, CurveKeys, Subscription
from .record import Record
from .wire import Kind

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11; the client runs on 3.10 too


class _BaseSubscriber:
    """The shared part of both subscribers: a connection and a default timeout."""

    def __init__(
        self,
        endpoint: str,
        *,
        cameras: Sequence[str] = (),
        kinds: Sequence[Kind] = (Kind.FEATURES,),
        timeout_s: float | None = None,
        latest_only: bool = False,
        curve: CurveKeys | None = None,
    ) -> None:
        """Connect, without waiting for the service.

        Args:
            endpoint: address at which the service publishes, such as `tcp://127.0.0.1:5555`.
            cameras: camera names; empty for all cameras.
            kinds: message kinds; features only by default.
            timeout_s: longest time to wait for a record, in seconds; None waits forever.
            latest_only: whether to return only the newest waiting record of each camera and kind, and skip older ones.
            curve: keys for a service that uses CURVE, or None.

        Raises:
            ValueError: the endpoint, a camera name or a key file is invalid.
        """
        self._timeout_s = timeout_s
        self._connection = Connection(Subscription(endpoint, tuple(cameras), tuple(kinds), latest_only, curve))

    @property
    def refusal(self) -> str | None:
        """Why the service refuses the connection, as with CURVE keys that do not match, and what to do; else None."""
        return self._connection.refusal()

    def close(self) -> None:
        """Close the connection. Idempotent. Records already received stay valid."""
        self._connection.close()


class Subscriber(_BaseSubscriber):
    """A blocking subscriber: a context manager and an iterator of records. Use it on one thread."""

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> "Self":
        return self

    def __next__(self) -> Record:
        return self.receive()

    def receive(self, timeout_s: float | None = None) -> Record:
        """Wait for the next record.

        Args:
            timeout_s: longest time to wait, in seconds; None uses the subscriber's own timeout.

        Raises:
            TimeoutError: no record arrived in time; the message says what to check.
            WireError: a message is malformed or has a newer layout; the next call continues with the next message.
        """
        deadline = _Deadline(self._timeout_s if timeout_s is None else timeout_s)
        while (record := self._connection.receive_nowait()) is None:
            left_s = self._connection.patience_s(deadline.left_s())
            if left_s <= 0:
                raise TimeoutError(self._connection.silence(deadline.timeout_s))
            self._connection.socket.poll(None if left_s == float("inf") else int(left_s * 1000) + 1)
        return record


class AsyncSubscriber(_BaseSubscriber):
    """An asyncio subscriber: an async context manager and an async iterator of records. Use it in one task."""

    _is_waiting = False

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> "Self":
        return self

    async def __anext__(self) -> Record:
        return await self.receive()

    async def receive(self, timeout_s: float | None = None) -> Record:
        """Wait for the next record. A cancelled call loses no record.

        Args:
            timeout_s: longest time to wait, in seconds; None uses the subscriber's own timeout.

        Raises:
            TimeoutError: no record arrived in time; the message says what to check.
            WireError: a message is malformed or has a newer layout; the next call continues with the next message.
            RuntimeError: another task is already waiting on this subscriber.
        """
        deadline = _Deadline(self._timeout_s if timeout_s is None else timeout_s)
        await asyncio.sleep(0)  # lets other tasks run even while records are queued
        while (record := self._connection.receive_nowait()) is None:
            left_s = self._connection.patience_s(deadline.left_s())
            if left_s <= 0:
                raise TimeoutError(self._connection.silence(deadline.timeout_s))
            await self._wait(left_s)
        return record

    async def _wait(self, timeout_s: float) -> None:
        if self._is_waiting:
            raise RuntimeError("another task is already waiting on this subscriber")
        loop, ready, descriptor = asyncio.get_running_loop(), asyncio.Event(), self._connection.socket.fileno()
        self._is_waiting = True
        loop.add_reader(descriptor, ready.set)
        timer = None if timeout_s == float("inf") else loop.call_later(timeout_s, ready.set)
        try:
            # libzmq's descriptor is edge-triggered: messages that arrived before add_reader must be polled for.
            if not self._connection.socket.poll(0):
                await ready.wait()
        finally:
            if timer is not None:
                timer.cancel()
            loop.remove_reader(descriptor)
            self._is_waiting = False


class _Deadline:
    """A deadline on the monotonic clock; infinite if the timeout is None."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = float("inf") if timeout_s is None else timeout_s
        self._at_s = time.monotonic() + self.timeout_s

    def left_s(self) -> float:
        return self._at_s - time.monotonic()
