"""Subscriber processes: a test starts, freezes, kills and restarts them, and reads what they received."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .subscribe import Received

_PROGRAM = Path(__file__).with_name("subscribe.py")


class SubscriberProcess:
    """A subscriber in a process of its own, which writes what it receives to a file.

    Args:
        name: the name of the file.
        folder: the folder of the file.
        pause_s: how long it sleeps after each record.
    """

    def __init__(self, name: str, folder: Path, pause_s: float = 0.0) -> None:
        self.name = name
        self.file = folder / f"{name}.jsonl"
        self._errors = folder / f"{name}.err"
        self._pause_s = pause_s
        self._process: subprocess.Popen[bytes] | None = None
        self._read_to = 0

    def start(self, endpoint: str) -> None:
        """Subscribe; a file from an earlier start is appended to."""
        command = [sys.executable, str(_PROGRAM), endpoint, str(self.file), str(self._pause_s)]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(command, stdout=errors, stderr=errors)

    def kill(self) -> None:
        """Kill the process. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def errors(self) -> str:
        """Everything that it printed: nothing, unless it failed."""
        return self._errors.read_text() if self._errors.exists() else ""

    def new(self) -> list[Received]:
        """Records that it has received since the last call."""
        with self.file.open("rb") as source:
            source.seek(self._read_to)
            *lines, rest = source.read().split(b"\n")
            self._read_to = source.tell() - len(rest)
        return list(_decoded(lines))

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


def _decoded(lines: list[bytes]) -> Iterator[Received]:
    decoder = msgspec.json.Decoder(Received)
    for line in lines:
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError:  # the process was killed while it wrote this line
            continue
