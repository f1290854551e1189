"""The thread that owns the engine. No other thread uses the CUDA context, the weights or the streams' memory.

The event loop submits calls, which run one at a time and in order, and awaits their results. A call that hangs does not
block the event loop; `busy_s` and `is_overdue` reveal it.
"""

import math
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import anyio
from anyio import from_thread
from anyio.lowlevel import EventLoopToken, current_token

Owned = TypeVar("Owned")
Result = TypeVar("Result")


@dataclass(slots=True)
class _Call(Generic[Owned]):
    """A submitted call; `done` is set on the event loop once `result` or `error` is available."""

    function: Callable[[Owned], Any]
    limited: bool = False
    done: anyio.Event = field(default_factory=anyio.Event)
    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Busy:
    # Both values are in one object, so that another thread always reads two that belong to the same call.
    since: float
    until: float


class Worker(Generic[Owned]):
    """Runs calls on a resource in the thread that created it.

    An asynchronous context manager. Entering it starts the thread and waits until `make` has returned; an exception of
    `make` is raised there. Leaving it closes the resource, after waiting at most `close_timeout_s` for a running call.
    If a caller is cancelled while it waits, the result is lost, but the call still runs to its end.

    Args:
        make: creates the resource, in the worker's thread.
        call_limit_s: seconds after which a call is overdue. Creating the resource has no limit.
        close_timeout_s: seconds to wait for the thread to end when closing, counted from the start of a running call. A
            thread that hangs longer is abandoned; it is a daemon thread, so the process can end without it.
    """

    def __init__(
        self,
        make: Callable[[], AbstractContextManager[Owned]],
        *,
        call_limit_s: float = math.inf,
        close_timeout_s: float = 0.5,
    ) -> None:
        self._make = make
        self._call_limit_s = call_limit_s
        self._close_timeout_s = close_timeout_s
        self._calls: queue.SimpleQueue[_Call[Owned] | None] = queue.SimpleQueue()
        self._busy: _Busy | None = None
        self._closing = False

    async def __aenter__(self) -> Self:
        self._token = current_token()
        self._started: _Call[Owned] = _Call(lambda owned: None)
        self._stopped = anyio.Event()
        self._thread = threading.Thread(target=self._main, name="retinad-worker", daemon=True)
        self._thread.start()
        try:
            await self._started.done.wait()
        except BaseException:  # cancelled while the resource is being created
            await self._close()
            raise
        if self._started.error is not None:
            raise self._started.error
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._close()

    @property
    def busy_s(self) -> float:
        """Seconds that the running call has taken so far; 0 if none is running."""
        busy = self._busy
        return 0.0 if busy is None else time.monotonic() - busy.since

    @property
    def is_overdue(self) -> bool:
        """Whether the running call has exceeded its time limit."""
        busy = self._busy
        return busy is not None and time.monotonic() > busy.until

    def stack(self) -> list[str]:
        """The thread's current call stack, outermost call first: file, line and function, without values."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        calls = traceback.extract_stack(frame) if frame else []
        return [f"{call.filename}:{call.lineno} {call.name}" for call in calls]

    async def run(self, function: Callable[[Owned], Result], *, limited: bool = True) -> Result:
        """Run `function(resource)` in the worker's thread, after all earlier calls, and return its result.

        Args:
            function: what to run.
            limited: whether the time limit applies; False for calls that read or write files, as disks may be slow.

        Raises:
            RuntimeError: the worker is closing.
            BaseException: whatever `function` raises.
        """
        return await self.start(function, limited=limited)()

    def start(
        self, function: Callable[[Owned], Result], *, limited: bool = True
    ) -> Callable[[], Coroutine[None, None, Result]]:
        """Submit a call like `run`, but return at once; the caller waits for the result later.

        Returns:
            a function that waits for the result and returns it; to be called once.

        Raises:
            RuntimeError: the worker is closing.
        """
        if self._closing:
            raise RuntimeError("the worker is closed")
        call: _Call[Owned] = _Call(function, limited)
        self._calls.put(call)

        async def wait() -> Result:
            await call.done.wait()
            if call.error is not None:
                raise call.error
            result: Result = call.result
            return result

        return wait

    def on_loop(self, function: Callable[[], Result]) -> Result:
        """Run `function()` on the event loop, from within a call, and return its result.

        Raises:
            RuntimeError: the event loop is gone.
            BaseException: whatever `function` raises.
        """
        token: EventLoopToken = self._token
        return from_thread.run_sync(function, token=token)

    async def _close(self) -> None:
        self._closing = True
        self._calls.put(None)
        with anyio.move_on_after(max(0.0, self._close_timeout_s - self.busy_s), shield=True):
            await self._stopped.wait()

    def _main(self) -> None:
        try:
            with self._make() as owned:
                self._finish(self._started)
                while (call := self._calls.get()) is not None:
                    self._execute(call, owned)
                    del call  # its result must not live until the next call
        except BaseException as error:  # creating or closing failed: `__aenter__` raises the former
            self._started.error = self._started.error or error
            self._finish(self._started)
        finally:
            self._notify_loop(self._stopped.set)

    def _execute(self, call: _Call[Owned], owned: Owned) -> None:
        now = time.monotonic()
        self._busy = _Busy(now, now + self._call_limit_s if call.limited else math.inf)
        try:
            call.result = call.function(owned)
        except BaseException as error:
            call.error = error
        self._busy = None
        self._finish(call)

    def _finish(self, call: _Call[Owned]) -> None:
        self._notify_loop(call.done.set)

    def _notify_loop(self, function: Callable[[], None]) -> None:
        try:
            self.on_loop(function)
        except RuntimeError:  # the event loop is gone, and the waiter with it (anyio.RunFinishedError is one)
            return
