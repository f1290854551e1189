"""Collects frames into a result, and writes its files now and then and at the end."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Protocol

from retinad.pipeline.files.atomic import written_whole

from ..exit_codes import ExitCode, JobError
from .frames import FrameSource, PosedFrame
from .targets import Target

WRITE_SHARE = 20
"""Minimum interval between writes, as a multiple of the duration of the last one."""

IsStopped = Callable[[], bool]
Say = Callable[[str], None]


class Result(Protocol):
    """What is made of the frames of one trajectory."""

    def add(self, frame: PosedFrame) -> bool:
        """Add a frame; whether it was of use."""

    def clear(self) -> None:
        """Forget everything, for a new trajectory."""

    def write(self, form: str, file: BinaryIO) -> None:
        """Write the result in a format. Called only after a frame was of use."""

    def describe(self) -> str:
        """The result in a few words."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When to write and when to end.

    Attributes:
        write_every_s: interval between writes in seconds.
        frames: number of useful frames after which to end, or None.
        seconds: seconds after which to end, or None.
    """

    write_every_s: float = 5.0
    frames: int | None = None
    seconds: float | None = None


def collect(
    source: FrameSource, result: Result, targets: Sequence[Target], limits: Limits, say: Say, is_stopped: IsStopped
) -> ExitCode:
    """Collect frames until they end, a limit is reached or `is_stopped`, then write the files.

    If a trajectory ends and a new one begins, the files of the earlier one get a number, since the two have nothing in
    common: `path-1.svg`.

    Raises:
        JobError: no frame was of use, or the files cannot be written at the end.
    """
    collector = _Collector(source.name, result, targets, say)
    end_s = None if limits.seconds is None else time.monotonic() + limits.seconds
    due_s = time.monotonic() + limits.write_every_s
    used = 0
    for frame in source.frames:
        used += frame is not None and collector.add(frame)
        now_s = time.monotonic()
        if is_stopped() or used == limits.frames or (end_s is not None and now_s >= end_s):
            break
        if now_s >= due_s:
            collector.write_now()
            due_s = time.monotonic() + max(limits.write_every_s, WRITE_SHARE * (time.monotonic() - now_s))
    if not used:
        raise JobError(ExitCode.NO_INPUT, f"no frame of {source.name} could be used: nothing was written")
    collector.write_last()
    return ExitCode.OK


class _Collector:
    def __init__(self, name: str, result: Result, targets: Sequence[Target], say: Say) -> None:
        self._name = name
        self._result = result
        self._targets = targets
        self._say = say
        self._last: PosedFrame | None = None
        self._used = 0  # frames of this trajectory
        self._is_written = True
        self._has_failed = False

    def add(self, frame: PosedFrame) -> bool:
        if self._last is not None and not frame.continues(self._last):
            self._begin_anew()
        self._last = frame
        is_of_use = self._result.add(frame)
        self._used += is_of_use
        self._is_written &= not is_of_use
        return is_of_use

    def write_now(self) -> None:
        # A full disk may have room again later, so the stream is not given up.
        if self._is_written:
            return
        try:
            self._write(self._targets)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                self._say(f"warning: {_unwritten(error)}; trying again")
            self._has_failed = True

    def write_last(self) -> None:
        names = ", ".join(str(target.path) for target in self._targets)
        if not self._used:
            self._say(f"the last trajectory of {self._name} has no frame of use: {names} are of an earlier one")
            return
        try:
            if not self._is_written:
                self._write(self._targets)
        except OSError as error:
            raise JobError(ExitCode.IO_ERROR, _unwritten(error)) from error
        self._say(f"{self._result.describe()} of {self._name}: {names}")

    def _write(self, targets: Sequence[Target]) -> None:
        for target in targets:
            self._write_file(target.path, target.form)
        self._is_written = True

    def _write_file(self, path: Path, form: str) -> None:
        try:
            with written_whole(path) as file:
                self._result.write(form, file)
        except OSError as error:
            error.filename = str(path)
            raise

    def _begin_anew(self) -> None:
        self._say(f"the trajectory of {self._name} begins anew: the memory was lost or set back")
        if self._used:
            for target in self._targets:
                self._keep(target)
        self._result.clear()
        self._used, self._is_written = 0, True

    def _keep(self, target: Target) -> None:
        path = target.numbered()
        if path is None:
            self._say(f"warning: the earlier {target.path} is not kept: there are too many already")
            return
        try:
            self._write_file(path, target.form)
            self._say(f"{self._result.describe()} before that: {path}")
        except OSError as error:
            self._say(f"warning: {_unwritten(error)}")


@contextmanager
def stop_signals() -> Iterator[IsStopped]:
    """A context in which SIGINT and SIGTERM ask to stop; a second one raises KeyboardInterrupt. Main thread only."""
    stopped = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        if stopped:
            raise KeyboardInterrupt
        stopped = True

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, handle) for number in numbers]
    try:
        yield lambda: stopped
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _unwritten(error: OSError) -> str:
    return f"{error.filename} cannot be written: {error.strerror or error}"
