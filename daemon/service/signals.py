"""Turns the process's signals into requests: stop, reload the config, renew all streams."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import structlog

from ..logs.setup import flush_log

_BLOCKED = (signal.SIGHUP, signal.SIGUSR1)
"""Blocked by `__main__` until somebody listens for them, and again afterwards: by default they end the process."""

_log = structlog.get_logger("retinad")


class Request:
    """Something that is asked for any number of times and then handled once."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    @property
    def is_pending(self) -> bool:
        """Whether it was asked for and not yet taken."""
        return self._event.is_set()

    def ask(self) -> None:
        """Ask for it. Idempotent until it is taken."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until it is asked for; it stays pending."""
        await self._event.wait()

    async def take(self) -> None:
        """Wait until it is asked for, and clear it."""
        await self._event.wait()
        self._event = anyio.Event()


class Signals:
    """Receives SIGTERM, SIGINT, SIGHUP and SIGUSR1 on the event loop.

    Attributes:
        stop: SIGTERM or SIGINT. A second one ends the process at once.
        reload: SIGHUP.
        renewal: SIGUSR1: all streams begin new epochs.
    """

    def __init__(self) -> None:
        self.stop = Request()
        self.reload = Request()
        self.renewal = Request()

    async def receive(self) -> None:
        """Handle signals until cancelled."""
        receiver = anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *_BLOCKED)
        with receiver as signals, _unblocked(*_BLOCKED):
            async for number in signals:
                if number == signal.SIGHUP:
                    self.reload.ask()
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
