"""Keeps a camera's capture process from one attempt to the next, so that a new process is started only if it died."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self

import anyio

from ..config import CameraConfig
from .capture import Capture, OnLog
from .knock import knock
from .starts import TURN_S, CaptureStarts

StartCapture = Callable[[CameraConfig, OnLog], AbstractAsyncContextManager[Capture]]


class CaptureKeeper:
    """The owner of a camera's capture process, from the first attempt to the camera's end. A context manager.

    Args:
        config: the camera.
        on_log: called with each line that the process prints.
        start: starts a process.
        starts: the budget of process starts, which cameras share.

    Attributes:
        lost: whether the process ended during the last connection.
    """

    def __init__(self, config: CameraConfig, on_log: OnLog, start: StartCapture, starts: CaptureStarts) -> None:
        self.lost = False
        self._config = config
        self._on_log = on_log
        self._start = start
        self._starts = starts
        self._capture: Capture | None = None
        self._resources = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Capture]:
        """Open the source for the body of the context. If no process is running, knock at the address first.

        Raises:
            SourceError: the source cannot be opened; or, raised by the body, the source failed.
        """
        self.lost = False
        if self._capture is None:
            await knock(self._config)
        try:
            capture = self._capture or await self._load()
            await capture.open()
            yield capture
        finally:
            # After a failure that the process reported itself, the process waits to open the source again. In any other
            # case it may be stuck.
            if self._capture is not None and not self._capture.reusable:
                self.lost = True
                await self._close()

    async def _load(self) -> Capture:
        async with self._starts.turn():
            self._capture = await self._resources.enter_async_context(self._start(self._config, self._on_log))
            with anyio.move_on_after(TURN_S):
                await self._capture.load()
        return self._capture

    async def _close(self) -> None:
        self._capture = None
        await self._resources.aclose()
