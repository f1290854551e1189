"""The subscribers that users open: one that blocks, one for asyncio. Both are thin: how to wait is all they add.

The asynchronous one runs on asyncio, and so under anyio on its asyncio backend, not under trio. It waits for the
socket's file descriptor by the loop's own `add_reader`, which needs no dependency, and takes a message only when it
hands it out, so that a task that is cancelled while it waits loses none.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from .connection import Connection, CurveKeys, Subscription
from .record import Record
from .wire import Kind


class _BaseSubscriber:
    """What both kinds share: a connection, and how long to wait on it."""

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
        """Connect; this does not wait for the service.

        Args:
            endpoint: where the service publishes, such as `tcp://127.0.0.1:5555`.
            cameras: names of cameras; empty for all.
            kinds: kinds of messages; only features if not said otherwise.
            timeout_s: seconds to wait for a record at most, or None for ever.
            latest_only: whether records that are no longer the newest of their camera and kind are skipped.
            curve: keys for a service that encrypts, or None.

        Raises:
            ValueError: the endpoint, a camera's name or a key file cannot be used.
        """
        self._timeout_s = timeout_s
        self._connection = Connection(Subscription(endpoint, tuple(cameras), tuple(kinds), latest_only, curve))

    def close(self) -> None:
        """Close the connection. Idempotent. Records already received stay valid."""
        self._connection.close()


class Subscriber(_BaseSubscriber):
    """Receives records, waiting for them. A context manager and an iterator; use it on one thread."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        return self.receive()

    def receive(self, timeout_s: float | None = None) -> Record:
        """Wait for the next record.

        Args:
            timeout_s: seconds to wait at most; None for the subscriber's own.

        Raises:
            TimeoutError: nothing came; the text says what to check.
            WireError: a message is malformed or of a newer layout; the next call goes on with the message after it.
        """
        deadline = _Deadline(self._timeout_s if timeout_s is None else timeout_s)
        while (record := self._connection.receive_nowait()) is None:
            left_s = self._connection.patience_s(deadline.left_s())
            if left_s <= 0:
                raise TimeoutError(self._connection.silence(deadline.timeout_s))
            self._connection.socket.poll(None if left_s == float("inf") else int(left_s * 1000) + 1)
        return record


class AsyncSubscriber(_BaseSubscriber):
    """Receives records on asyncio's event loop. A context manager and an iterator, both asynchronous; for one task."""

    _is_waiting = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        return await self.receive()

    async def receive(self, timeout_s: float | None = None) -> Record:
        """Wait for the next record. Cancelling it loses none.

        Args:
            timeout_s: seconds to wait at most; None for the subscriber's own.

        Raises:
            TimeoutError: nothing came; the text says what to check.
            WireError: a message is malformed or of a newer layout; the next call goes on with the message after it.
            RuntimeError: another task is waiting for a record of this subscriber.
        """
        deadline = _Deadline(self._timeout_s if timeout_s is None else timeout_s)
        await asyncio.sleep(0)  # other tasks get their turn even while records wait in a row
        while (record := self._connection.receive_nowait()) is None:
            left_s = self._connection.patience_s(deadline.left_s())
            if left_s <= 0:
                raise TimeoutError(self._connection.silence(deadline.timeout_s))
            await self._wait(left_s)
        return record

    async def _wait(self, timeout_s: float) -> None:
        if self._is_waiting:
            raise RuntimeError("another task is waiting for a record of this subscriber")
        loop, ready, descriptor = asyncio.get_running_loop(), asyncio.Event(), self._connection.socket.fileno()
        self._is_waiting = True
        loop.add_reader(descriptor, ready.set)
        try:
            # libzmq signals its descriptor at the edge: what came before the reader was there must be asked for.
            if not self._connection.socket.poll(0):
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if timeout_s == float("inf") else timeout_s):
                        await ready.wait()
        finally:
            loop.remove_reader(descriptor)
            self._is_waiting = False


class _Deadline:
    """A time limit on the monotonic clock; infinite without a number of seconds."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = float("inf") if timeout_s is None else timeout_s
        self._at_s = time.monotonic() + self.timeout_s

    def left_s(self) -> float:
        return self._at_s - time.monotonic()
