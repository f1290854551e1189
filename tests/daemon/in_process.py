"""Runs the service in the test's own process, with an engine of the test, real cameras and real sockets."""

import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio

from retinad.client import Record
from retinad.daemon.config.load import ServiceConfig, load_config
from retinad.daemon.errors import only_error
from retinad.daemon.exit_codes import ExitCode
from retinad.daemon.service import load
from retinad.daemon.service.service import Dependencies, serve
from retinad.daemon.service.systemd import Notifier
from retinad.pipeline.config import ModelConfig
from retinad.pipeline.engine.engine import Engine

from ..deadlines import scaled
from .service_rig import camera, subscriber, write_config

SOURCE = "synthetic:?fps=40&width=160&height=120"
WATCHDOG_S = 1.0
Act = Callable[[list[Record]], Coroutine[Any, Any, None]]


class InProcessService:
    """Runs the service once in this process; records what it published and its systemd notifications.

    It starts in a fraction of the time of a process, which imports torch first.

    Args:
        folder: for sockets and, unless there is one, the config.
        make_engine: makes the engine; None for the service's own.
        cameras: the cameras' tables, if there is no config.
        config: the config file.
    """

    def __init__(
        self,
        folder: Path,
        make_engine: Callable[[ModelConfig], Engine] | None = None,
        *,
        cameras: str = camera("a", SOURCE),
        config: Path | None = None,
    ) -> None:
        self.records: list[Record] = []
        self.notifications: list[tuple[float, str]] = []
        self.path = config or write_config(folder, cameras)
        self._make_engine = make_engine
        self._folder = folder

    def run(self, act: Act) -> ExitCode:
        """Serve while `act` runs."""

        async def main() -> ExitCode:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(act, self.records)
                try:
                    code = await serve(load_config(self.path, {}), dependencies, notifier)
                finally:
                    tasks.cancel_scope.cancel()
            return code

        dependencies = Dependencies(
            load_config=lambda: load_config(self.path, {}),
            configure=lambda config: None,
            versions={},
            make_engine=self._make,
        )
        with self._listening(), self._manager() as environment, Notifier(environment) as notifier:
            try:
                return anyio.run(main)
            except BaseExceptionGroup as group:
                raise only_error(group) from None

    def _make(self, config: ServiceConfig) -> Engine:
        return load.make_engine(config) if self._make_engine is None else self._make_engine(config.model)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        def listen() -> None:
            with subscriber(self._folder) as source:
                while True:  # what was published before the end may arrive after it
                    try:
                        self.records.append(source.receive(0.2))
                    except TimeoutError:
                        if over.is_set():
                            return

        over = threading.Event()
        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @contextmanager
    def _manager(self) -> Iterator[dict[str, str]]:
        def listen(received: socket.socket) -> None:
            with received:
                while text := received.recv(4096):
                    self.notifications.append((time.monotonic(), text.decode()))

        address = str(self._folder / "notify.sock")
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(address)
        thread = threading.Thread(target=listen, args=(manager,))
        thread.start()
        try:
            yield {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
                last.sendto(b"", address)
            thread.join()
            os.unlink(address)


def unfed_s(notifications: list[tuple[float, str]]) -> float:
    """The longest time in which the watchdog was not fed between READY and STOPPING, in seconds."""
    fed = [at for at, text in notifications if text in ("READY=1", "WATCHDOG=1", "STOPPING=1")]
    return max(later - earlier for earlier, later in pairwise(fed))


async def until(done: Callable[[], bool], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + scaled(within_s)
    while not done():
        assert time.monotonic() < deadline
        await anyio.sleep(0.02)
