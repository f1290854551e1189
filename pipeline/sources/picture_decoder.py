"""Decodes pictures from the network in a process of its own, which is started at the first one and kept."""

import os
import socket
import subprocess
import sys
from types import MappingProxyType, TracebackType
from typing import Self

import anyio
import numpy as np

from ..errors import QueryError
from ..frames import Pixels
from .picture_process import ANSWER, LENGTH

DECODE_S = 5.0
"""Maximum time for one picture, in seconds, with the start of the process."""
_ONE_THREAD = MappingProxyType({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
_KEPT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "TMPDIR")
"""Variables that the process inherits. It needs no secrets and nothing of systemd's."""


class PictureDecoder:
    """Decodes one picture at a time. An asynchronous context manager: leaving it ends the process."""

    def __init__(self) -> None:
        self._process: _Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def decode(self, data: bytes) -> Pixels:
        """Decode the first picture of a file: uint8 [height, width, 3], BGR.

        Raises:
            QueryError: the picture cannot be decoded; the message says why.
        """
        try:
            with anyio.fail_after(DECODE_S):
                width, height, rest = await self._exchange(data)
        except TimeoutError:
            await self._end()
            raise QueryError(f"the picture was not decoded within {DECODE_S:g} s") from None
        except (OSError, EOFError) as error:
            await self._end()
            raise QueryError("the picture ended the process that decodes pictures") from error
        except BaseException:  # cancelled: the process may be in the middle of an answer
            await self._end()
            raise
        if not width:
            raise QueryError(f"the picture cannot be decoded: {rest.decode(errors='replace')}")
        return np.frombuffer(rest, np.uint8).reshape(height, width, 3)

    async def _exchange(self, data: bytes) -> tuple[int, int, bytearray]:
        if self._process is None:
            self._process = _Process()
        process = self._process
        await process.send(LENGTH.pack(len(data)) + data)
        width, height, size = ANSWER.unpack(await process.receive(ANSWER.size))
        return width, height, await process.receive(size)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.end()


class _Process:
    def __init__(self) -> None:
        self._socket, child = socket.socketpair()
        self._socket.setblocking(False)
        # -P: no modules from the working directory. It ends when the socket is closed, as when the service dies.
        with child:
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.picture_process"],
                stdin=child.fileno(),
                stdout=child.fileno(),
                env={name: os.environ[name] for name in _KEPT if name in os.environ} | dict(_ONE_THREAD),
                start_new_session=True,
            )

    async def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)

    async def receive(self, size: int) -> bytearray:
        received = bytearray(size)
        left = memoryview(received)
        while left:
            try:
                count = self._socket.recv_into(left)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                continue
            if not count:
                raise EOFError
            left = left[count:]
        return received

    async def end(self) -> None:
        self._socket.close()
        self.popen.kill()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.popen.wait)
