"""The thread that owns the engine: a CUDA context, the weights and every stream's memory are touched by it alone.

The event loop hands it calls, one at a time and in order, and awaits their results; a call that hangs blocks no one
else, and `busy_s` lets the watchdog see it.
"""

import queue
import threading
import time
from collections.abc import Callable
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
    """A call on its way through the worker; `done` is set on the event loop once `result` or `error` is there."""

    function: Callable[[Owned], Any]
    done: anyio.Event = field(default_factory=anyio.Event)
    result: Any = None
    error: BaseException | None = None


class Worker(Generic[Owned]):
    """Runs calls on a resource in the one thread that made it.

    An asynchronous context manager: entering starts the thread and waits until `make` has returned (its exception is
    raised here); leaving closes the resource, waiting at most `close_timeout_s` for a call that is still running.
    Cancelling a wait abandons the result, not the call.

    Args:
        make: makes the resource, in the worker's thread.
        close_timeout_s: seconds to wait for the thread at the end. A thread that hangs longer is left behind; it is
            daemonic, so it does not keep the process alive.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Owned]], *, close_timeout_s: float = 0.5) -> None:
        self._make = make
        self._close_timeout_s = close_timeout_s
        self._calls: queue.SimpleQueue[_Call[Owned] | None] = queue.SimpleQueue()
        self._busy_since: float | None = None
        self._closing = False

    async def __aenter__(self) -> Self:
        self._token = current_token()
        self._started: _Call[Owned] = _Call(lambda owned: None)
        self._stopped = anyio.Event()
        self._thread = threading.Thread(target=self._main, name="retinad-worker", daemon=True)
        self._thread.start()
        try:
            await self._started.done.wait()
        except BaseException:  # cancelled while the resource is being made
            await self._close()
            raise
        if self._started.error is not None:
            raise self._started.error
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._close()

    @property
    def busy_s(self) -> float:
        """Seconds that the call now running has taken; 0 when there is none."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    async def run(self, function: Callable[[Owned], Result]) -> Result:
        """Run `function(resource)` in the worker's thread, after all calls made before, and return its result.

        Raises:
            RuntimeError: the worker is closing.
            BaseException: whatever `function` raises.
        """
        if self._closing:
            raise RuntimeError("the worker is closed")
        call: _Call[Owned] = _Call(function)
        self._calls.put(call)
        await call.done.wait()
        if call.error is not None:
            raise call.error
        result: Result = call.result
        return result

    async def _close(self) -> None:
        self._closing = True
        self._calls.put(None)
        with anyio.move_on_after(self._close_timeout_s, shield=True):
            await self._stopped.wait()

    def _main(self) -> None:
        try:
            with self._make() as owned:
                self._finish(self._started)
                while (call := self._calls.get()) is not None:
                    self._execute(call, owned)
                    del call  # its result must not live until the next call comes
        except BaseException as error:  # making or closing the resource failed: `__aenter__` re-raises the former
            self._started.error = self._started.error or error
            self._finish(self._started)
        finally:
            self._on_loop(self._stopped.set)

    def _execute(self, call: _Call[Owned], owned: Owned) -> None:
        self._busy_since = time.monotonic()
        try:
            call.result = call.function(owned)
        except BaseException as error:
            call.error = error
        self._busy_since = None
        self._finish(call)

    def _finish(self, call: _Call[Owned]) -> None:
        self._on_loop(call.done.set)

    def _on_loop(self, function: Callable[[], None]) -> None:
        token: EventLoopToken = self._token
        try:
            from_thread.run_sync(function, token=token)
        except RuntimeError:  # the event loop is gone, and with it whoever waited (anyio.RunFinishedError is one)
            return
