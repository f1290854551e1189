"""Shows the progress of an extraction on standard error: as a bar on a terminal, otherwise as a line now and then."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..logs.rate_limit import RateLimit

_LINE_S = 10.0
"""Seconds between progress lines if standard error is not a terminal."""


class Reporter:
    """Prints the messages and the progress of a job.

    Args:
        console: where to print.
        progress: the bar, or None to print lines.
    """

    def __init__(self, console: Console, progress: Progress | None) -> None:
        self._console = console
        self._progress = progress
        self._task: TaskID | None = None
        self._limit = RateLimit(_LINE_S, burst=20)
        self._printed_at = time.monotonic()
        self._began_at = self._began_with = 0.0

    def say(self, text: str) -> None:
        """Print a line; control characters are replaced."""
        plain = "".join(letter if letter.isprintable() else "?" for letter in text)
        self._console.print(Text(plain), soft_wrap=True)

    def decoder_line(self, line: str) -> None:
        """Print a line from the decoder, but at most twenty lines in ten seconds."""
        suppressed = self._limit.admit("decoder")
        if suppressed is not None:
            self.say(f"{line} ({suppressed} lines before it were suppressed)" if suppressed else line)

    def end(self) -> None:
        """Print how many lines from the decoder were suppressed. Call it after the last line."""
        suppressed = sum(self._limit.take_suppressed().values())
        if suppressed:
            self.say(f"{suppressed} more lines like these were suppressed")

    def begin(self, done: int) -> None:
        """Start measuring the rate.

        Args:
            done: number of frames that earlier runs have extracted.
        """
        self._began_at, self._began_with = time.monotonic(), done
        if self._progress is not None:
            self._task = self._progress.add_task("frames", total=None, completed=done, rate="")

    def frames_per_s(self, done: int) -> float:
        """The frames per second since `begin`, given the number of frames extracted so far."""
        return (done - self._began_with) / max(time.monotonic() - self._began_at, 1e-9)

    def update(self, done: int, total: int | None) -> None:
        """Show the progress.

        Args:
            done: number of frames extracted so far.
            total: number of frames in the recording, or None if it is not known.
        """
        frames_per_s = self.frames_per_s(done)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total, rate=f"{frames_per_s:.1f} frames/s")
        elif time.monotonic() - self._printed_at >= _LINE_S:
            self._printed_at = time.monotonic()
            self.say(progress_line(done, total, frames_per_s))


def progress_line(done: int, total: int | None, frames_per_s: float) -> str:
    """The progress as one line."""
    if total is None:
        return f"{done} frames, {frames_per_s:.1f} frames/s"
    line = f"{done} of {total} frames, {frames_per_s:.1f} frames/s"
    if frames_per_s <= 0 or total < done:
        return line
    minutes, seconds = divmod(round((total - done) / frames_per_s), 60)
    return f"{line}, {minutes} min {seconds:02} s left"


@contextmanager
def open_reporter() -> Iterator[Reporter]:
    """Open a reporter that prints to standard error, with a bar if that is a terminal."""
    console = Console(file=sys.stderr, highlight=False)
    if not console.is_terminal:
        yield Reporter(console, None)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield Reporter(console, progress)
