"""Turns the process's signals into requests: stop, reload the config, renew all streams."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import structlog

from ..logs.setup import flush_log

_BLOCKED = (signal.SIGHUP, signal.SIGUSR1)
"""Blocked by `__main__` until somebody listens for them, and again afterwards: by default they end the process."""

ECHO_S = 0.1
"""A signal that is repeated within this many seconds counts once: Ctrl-C and `timeout` signal a whole process group,
and make or a shell passes on the signal that it got itself."""

_log = structlog.get_logger("retinad")


class EchoFilter:
    """Tells a new signal from an echo, which is the same signal delivered a second time.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_at: dict[int, float] = {}

    def is_echo(self, number: int) -> bool:
        """Whether the same signal came within `ECHO_S` before."""
        now, before = self._clock(), self._last_at.get(number, float("-inf"))
        if now - before < ECHO_S:
            return True
        self._last_at[number] = now
        return False


class Request:
    """A request that may be made any number of times before it is handled once."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    @property
    def is_pending(self) -> bool:
        """Whether the request was made and not taken yet."""
        return self._event.is_set()

    def ask(self) -> None:
        """Make the request. Idempotent until the request is taken."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until the request is made; it stays pending."""
        await self._event.wait()

    async def take(self) -> None:
        """Wait until the request is made, and clear it."""
        await self._event.wait()
        self._event = anyio.Event()


class Signals:
    """Receives SIGTERM, SIGINT, SIGHUP and SIGUSR1 on the event loop.

    Attributes:
        stop: SIGTERM or SIGINT. A second one ends the process at once, unless it is the echo of the first.
        reload: SIGHUP.
        renewal: SIGUSR1: all streams begin new epochs.
    """

    def __init__(self) -> None:
        self.stop = Request()
        self.reload = Request()
        self.renewal = Request()
        self._echoes = EchoFilter()

    async def receive(self) -> None:
        """Handle signals until cancelled."""
        receiver = anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *_BLOCKED)
        with receiver as signals, _unblocked(*_BLOCKED):
            async for number in signals:
                if number == signal.SIGHUP:
                    self.reload.ask()  # never filtered: a second SIGHUP may follow another change
                elif self._echoes.is_echo(number):
                    continue
                elif number == signal.SIGUSR1:
                    self.renewal.ask()
                elif self.stop.is_pending:
                    _log.warning("second stop signal: exiting immediately")
                    flush_log()
                    os._exit(128 + number)
                else:
                    _log.info("stopping", signal=number.name)
                    self.stop.ask()


@contextmanager
def _unblocked(*numbers: signal.Signals) -> Iterator[None]:
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
