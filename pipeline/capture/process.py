"""Runs a capture process from start to end, without a thread: its messages and log arrive on awaitable descriptors."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

import anyio

from .protocol import MAX_PACKET_BYTES

TERMINATE_S = 0.3
"""Time between SIGTERM and SIGKILL, in seconds."""
_KILL_S = 0.5
_LINE_BYTES = 4096
_NOT_INHERITED = ("NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "CREDENTIALS_DIRECTORY", "RETINAD_", "OPENCV_")

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Variables that disable numpy's threads: the process multiplies no matrices, and without idle threads it starts in
0.15 s instead of 0.28 s (2 cores).
"""


class CaptureProcess:
    """A running capture process. Use it on the event loop's thread only, except for `send`; end it with `stop`.

    The kernel kills the process when the thread that started it ends.

    Args:
        name: shown by `ps` as its last argument; not a secret.

    Raises:
        OSError: the limit on processes or descriptors is reached.
    """

    def __init__(self, name: str) -> None:
        with ExitStack() as ours, ExitStack() as childs:
            self._socket, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(self._socket.close)
            childs.callback(child.close)
            self._output, output = os.pipe()
            ours.callback(os.close, self._output)
            childs.callback(os.close, output)
            self._ready = ours.enter_context(select.epoll())
            self._popen = _start(child, output, name)
            ours.callback(_abandon, self._popen)
            self._pidfd = os.pidfd_open(self._popen.pid)
            ours.callback(os.close, self._pidfd)
            self._resources = ours.pop_all()
        self._socket.setblocking(False)
        os.set_blocking(self._output, False)
        self._ready.register(self._socket, select.EPOLLIN)
        self._ready.register(self._output, select.EPOLLIN)
        self._partial = b""
        self._output_closed = False
        self._stopped = False

    @property
    def pid(self) -> int:
        """Process id of the capture process."""
        return self._popen.pid

    def send(self, packet: bytes) -> None:
        """Send a message without waiting. Any thread may call this.

        Raises:
            OSError: the process is gone.
        """
        self._socket.send(packet)

    def receive(self) -> tuple[bytes, int | None] | None:
        """A message and the descriptor that came with it, which the caller must close; None if there is no message yet.

        An empty message means that the process closed its end or died.
        """
        for _ in range(2):  # a reset is reported once, before the messages that were sent until then
            try:
                packet, fds, _, _ = socket.recv_fds(self._socket, MAX_PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
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
        """Wait until the process has printed something. Waits indefinitely once the process has closed its output."""
        if self._output_closed:
            await anyio.sleep_forever()
        await anyio.wait_readable(self._output)

    def lines(self) -> list[str]:
        """The complete lines that the process and its libraries have printed since the last call."""
        chunk = self._partial + self._read_output()
        *whole, self._partial = chunk.split(b"\n")
        if len(self._partial) > _LINE_BYTES:
            whole, self._partial = [*whole, self._partial], b""
        return [text for line in whole if (text := line.decode(errors="replace").strip())]

    async def exit_status(self, timeout_s: float) -> int | None:
        """Wait for the process to exit. Returns its status, negative if a signal killed it; None if it still runs."""
        with anyio.move_on_after(timeout_s):
            await anyio.wait_readable(self._pidfd)
        return self._popen.poll()

    async def stop(self, goodbye_s: float = 0.0) -> None:
        """End the process by SIGTERM, then SIGKILL, and close all descriptors. Idempotent; not cancellable.

        Args:
            goodbye_s: seconds that the process has to exit by itself, once it notices that its socket is closed.
        """
        if self._stopped:
            return
        self._stopped = True
        with anyio.CancelScope(shield=True):
            if goodbye_s:
                with suppress(OSError):  # the process is gone
                    self._socket.shutdown(socket.SHUT_RDWR)
                await self.exit_status(goodbye_s)
            for number, timeout_s in ((signal.SIGTERM, TERMINATE_S), (signal.SIGKILL, _KILL_S)):
                if self._popen.poll() is None:
                    self._popen.send_signal(number)
                    await self.exit_status(timeout_s)
        self._resources.close()

    def _read_output(self) -> bytes:
        pieces = []
        with suppress(BlockingIOError):
            while piece := os.read(self._output, 65536):
                pieces.append(piece)
            self._output_closed = True
            with suppress(FileNotFoundError):  # a closed pipe stays readable
                self._ready.unregister(self._output)
        return b"".join(pieces)


def _start(child: socket.socket, output: int, name: str) -> subprocess.Popen[bytes]:
    # A session of its own, so that Ctrl-C reaches only the service. -P: no modules from the working directory.
    command = [sys.executable, "-P", "-m", f"{__package__}.child", str(child.fileno()), name]
    with _blocked(signal.SIGUSR1):  # meant for the service, but `systemctl kill` sends it to all of a unit's processes
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,  # FFmpeg prints here, OpenCV on standard error
            stderr=output,
            pass_fds=(child.fileno(),),
            start_new_session=True,
            env=_environment(os.environ),
        )


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    # In this thread for the duration, and permanently in a process started by it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _abandon(popen: subprocess.Popen[bytes]) -> None:
    # Does nothing once the exit is known. A process that survives SIGKILL hangs in the kernel, and is left to init.
    popen.kill()
    with suppress(subprocess.TimeoutExpired):
        popen.wait(0.05)


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    inherited = {key: value for key, value in own.items() if not key.startswith(_NOT_INHERITED)}
    return inherited | _ONE_THREAD
