"""Subscriber processes: started, stopped for a while, killed and started again, and read."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .listen import Seen

_PROGRAM = Path(__file__).with_name("listen.py")


class Listener:
    """A subscriber in a process of its own.

    Args:
        name: of its file.
        folder: where the file of what it sees is.
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
        """Begin to listen; the file goes on where it ended."""
        command = [sys.executable, str(_PROGRAM), endpoint, str(self.file), str(self._pause_s)]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(command, stdout=errors, stderr=errors)

    def kill(self) -> None:
        """End it at once. Idempotent."""
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
        """What it printed: nothing, if all is well."""
        return self._errors.read_text() if self._errors.exists() else ""

    def new(self) -> list[Seen]:
        """What it has seen since this was last called."""
        with self.file.open("rb") as source:
            source.seek(self._read_to)
            *lines, rest = source.read().split(b"\n")
            self._read_to = source.tell() - len(rest)
        return list(_decoded(lines))

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


def _decoded(lines: list[bytes]) -> Iterator[Seen]:
    decoder = msgspec.json.Decoder(Seen)
    for line in lines:
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError:  # it was killed while it wrote this line
            continue
