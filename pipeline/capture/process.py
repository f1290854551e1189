"""Starts, hears and ends a capture process, without a thread: all it says comes through awaitable descriptors."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

import anyio

from .protocol import MESSAGE_BYTES

TERMINATE_S = 0.3
"""Seconds that a capture process has to end before it is killed."""
_KILL_S = 0.5
_LINE_BYTES = 4096
_NOT_INHERITED = ("NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "CREDENTIALS_DIRECTORY", "RETINAD_", "OPENCV_")

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""It multiplies no matrices. Without numpy's idle threads it starts in 0.15 s rather than 0.28 s (2 cores)."""


class CaptureProcess:
    """A started capture process. Use it on the event loop's thread only, but for `send`; end it with `stop`.

    The kernel kills it should the thread that started it end.

    Args:
        name: shown by `ps` as its last argument; no secret.

    Raises:
        OSError: no process or descriptor is left.
    """

    def __init__(self, name: str) -> None:
        with ExitStack() as own, ExitStack() as childs:
            self._socket, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            own.callback(self._socket.close)
            childs.callback(child.close)
            self._output, output = os.pipe()
            own.callback(os.close, self._output)
            childs.callback(os.close, output)
            self._ready = own.enter_context(select.epoll())
            self._popen = _start(child, output, name)
            own.callback(_abandon, self._popen)
            self._pidfd = os.pidfd_open(self._popen.pid)
            own.callback(os.close, self._pidfd)
            self._own = own.pop_all()
        self._socket.setblocking(False)
        os.set_blocking(self._output, False)
        self._ready.register(self._socket, select.EPOLLIN)
        self._ready.register(self._output, select.EPOLLIN)
        self._partial = b""
        self._silent = False
        self._stopped = False

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    def send(self, packet: bytes) -> None:
        """Send a message without waiting; any thread may.

        Raises:
            OSError: the process is gone.
        """
        self._socket.send(packet)

    def receive(self) -> tuple[bytes, int | None] | None:
        """A message and the descriptor that came with it, which is the caller's to close; None when there is none yet.

        An empty message means that the process closed its end. It is not told apart from its death.
        """
        for _ in range(2):  # a reset is told once, before what had been sent until then
            try:
                packet, fds, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                continue
            return packet, fds[0] if fds else None
        return b"", None

    async def readable(self) -> None:
        """Wait for a message or a line."""
        await anyio.wait_readable(self._ready)

    async def printed(self) -> None:
        """Wait for a line, or a part of one; for ever once nobody holds the other end."""
        if self._silent:
            await anyio.sleep_forever()
        await anyio.wait_readable(self._output)

    def lines(self) -> list[str]:
        """What the process and its libraries printed since the last call, in whole lines."""
        chunk = self._partial + self._read_output()
        *whole, self._partial = chunk.split(b"\n")
        if len(self._partial) > _LINE_BYTES:
            whole, self._partial = [*whole, self._partial], b""
        return [text for line in whole if (text := line.decode(errors="replace").strip())]

    async def exit_status(self, timeout_s: float) -> int | None:
        """Wait for the process's end: its exit status, negative where a signal killed it; None when it still runs."""
        with anyio.move_on_after(timeout_s):
            await anyio.wait_readable(self._pidfd)
        return self._popen.poll()

    async def stop(self) -> None:
        """End the process, kindly, then by force, and close what is open. Idempotent; shielded from cancellation."""
        if self._stopped:
            return
        self._stopped = True
        with anyio.CancelScope(shield=True):
            for number, patience_s in ((signal.SIGTERM, TERMINATE_S), (signal.SIGKILL, _KILL_S)):
                if self._popen.poll() is None:
                    self._popen.send_signal(number)
                    await self.exit_status(patience_s)
        self._own.close()

    def _read_output(self) -> bytes:
        pieces = []
        with suppress(BlockingIOError):
            while piece := os.read(self._output, 65536):
                pieces.append(piece)
            self._silent = True
            with suppress(FileNotFoundError):  # at its end it would be readable for ever
                self._ready.unregister(self._output)
        return b"".join(pieces)


def _start(child: socket.socket, output: int, name: str) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches the service alone. -P: the working directory holds no modules for it.
    command = [sys.executable, "-P", "-m", f"{__package__}.child", str(child.fileno()), name]
    with _blocked(signal.SIGUSR1):  # is for the service, but `systemctl kill` sends it to all of a unit's processes
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,  # FFmpeg's lines come here, OpenCV's there
            stderr=output,
            pass_fds=(child.fileno(),),
            start_new_session=True,
            env=_environment(os.environ),
        )


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    # In this thread, and for good in a process that it starts.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _abandon(popen: subprocess.Popen[bytes]) -> None:
    # Does nothing once its end is known. What even SIGKILL does not end hangs in the kernel, and is left to init.
    popen.kill()
    with suppress(subprocess.TimeoutExpired):
        popen.wait(0.05)


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    inherited = {key: value for key, value in own.items() if not key.startswith(_NOT_INHERITED)}
    return inherited | _ONE_THREAD
