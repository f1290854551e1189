"""Captures output of native libraries and child processes on file descriptor 2, which Python loggers do not see."""

import fcntl
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TextIO

_PIPE_BYTES = 1 << 20
"""Size of the pipe in bytes. A write to a full pipe blocks, and a library may hold the GIL while it writes, so there
must be room.
"""
_LAST_WORDS = 'trap "" HUP INT TERM USR1 USR2; read -r word; [ "$word" = over ] || timeout 1 cat <&1 >&2 2>/dev/null'
"""Waits until this process has said that all is over, or has died. Then whatever nobody has read is printed. The read
end is non-blocking, so `cat` ends where the rest does. A shell takes 1 MB, a second Python 10."""
_GRACE_S = 0.02
_LONGEST_LINE = 8192
_LINE_END = re.compile(rb"[\r\n]+")


class NativeOutput:
    """Replaces file descriptor 2 by a pipe while open, and passes each line written to it to a function.

    If a library ends the process, what it said just before is still in the pipe. A shell, which outlives the process by
    some milliseconds, prints it as it is.

    Args:
        take_line: called with each line, in a thread of this object.

    Attributes:
        real_stderr: the original standard error.
        keep_open: whether another thread still uses `real_stderr`, so that it must not be closed.
    """

    def __init__(self, take_line: Callable[[str], None]) -> None:
        self._take_line = take_line
        self._rest = b""
        self._stopped = False
        self.keep_open = False
        self.real_stderr = _duplicate_stderr()

    def __enter__(self) -> Self:
        self._read_fd, write_fd = os.pipe()
        self._wake_read, self._wake_write = os.pipe()
        with suppress(OSError):
            fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(self._read_fd, False)
        self._heir, self._alive = self._start_heir()
        os.dup2(write_fd, 2)
        os.close(write_fd)
        self._thread = threading.Thread(target=self._read, name="native-output", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if not self.keep_open:
            self.real_stderr.close()

    def stop(self) -> None:
        """Restore descriptor 2, and pass on the rest of the pipe. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        with suppress(OSError, ValueError, AttributeError):  # None if the process was started without one
            sys.stderr.flush()
        os.dup2(self.real_stderr.fileno(), 2)
        os.close(self._wake_write)
        self._thread.join(timeout=1.0)
        self._dismiss_heir()
        if not self._thread.is_alive():
            os.close(self._read_fd)
            os.close(self._wake_read)

    def _start_heir(self) -> tuple[subprocess.Popen[bytes] | None, int]:
        # The shell, and the end of a pipe that only this process holds.
        ending, alive = os.pipe()
        try:
            shell = subprocess.Popen(
                ["/bin/sh", "-c", _LAST_WORDS],
                stdin=ending,
                stdout=self._read_fd,
                stderr=self.real_stderr.fileno(),
                env={"PATH": os.defpath},
                start_new_session=True,
            )
        except OSError:  # there is no shell, or no process left: the last words are lost, the service works
            shell = None
        os.close(ending)
        return shell, alive

    def _dismiss_heir(self) -> None:
        with suppress(OSError):
            os.write(self._alive, b"over\n")
        os.close(self._alive)
        if self._heir is not None:
            with suppress(subprocess.TimeoutExpired):
                self._heir.wait(0.2)

    def _read(self) -> None:
        """Read until the wake pipe closes: the write end may stay open longer, in child processes."""
        awake = True
        while awake:
            ready, _, _ = select.select([self._read_fd, self._wake_read], [], [])
            # What is read is lost if the process dies before it is logged. A library that ends the process does so at
            # once, so for a moment its words stay where the shell finds them.
            ready += select.select([self._wake_read], [], [], _GRACE_S)[0]
            awake = self._wake_read not in ready
            self._drain()
        if self._rest:
            self._take(self._rest)

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while block := os.read(self._read_fd, 65536):
                *lines, self._rest = _LINE_END.split(self._rest + block)
                for line in lines:
                    self._take(line)
                if len(self._rest) > _LONGEST_LINE:
                    self._take(self._rest)
                    self._rest = b""

    def _take(self, line: bytes) -> None:
        text = line[:_LONGEST_LINE].decode("utf-8", "backslashreplace").strip()
        if text:
            self._take_line(text)


def _duplicate_stderr() -> TextIO:
    try:
        os.fstat(2)
    except OSError:  # started with standard error closed: occupy the lowest free descriptors, up to 2
        while os.open(os.devnull, os.O_WRONLY) < 2:
            pass
    duplicate = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 3)
    return open(duplicate, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
