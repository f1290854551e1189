"""Says how far an extraction is: a bar on a terminal, else a line now and then. All of it goes to standard error."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..logs.rate_limit import RateLimit

_LINE_S = 10.0
"""Seconds between two lines where there is no terminal."""


class Reporter:
    """What a person sees of a job.

    Args:
        console: where it goes.
        progress: the bar, or None where none can be drawn.
    """

    def __init__(self, console: Console, progress: Progress | None) -> None:
        self._console = console
        self._progress = progress
        self._task: TaskID | None = None
        self._limit = RateLimit(_LINE_S, burst=20)
        self._said_at = time.monotonic()
        self._began_at = self._began_with = 0.0

    def say(self, text: str) -> None:
        """A line of its own; characters that would steer a terminal are replaced."""
        plain = "".join(letter if letter.isprintable() else "?" for letter in text)
        self._console.print(Text(plain), soft_wrap=True)

    def hear(self, line: str) -> None:
        """A line of the decoder: twenty at once, then no more until ten seconds have passed."""
        held_back = self._limit.admit("decoder")
        if held_back is not None:
            self.say(f"{line} (and {held_back} lines before it)" if held_back else line)

    def end(self) -> None:
        """No more lines of the decoder come: say how many were held back."""
        held_back = sum(self._limit.take_suppressed().values())
        if held_back:
            self.say(f"{held_back} more lines like these were left out")

    def begin(self, done: int) -> None:
        """Features are about to come; so many are there from before."""
        self._began_at, self._began_with = time.monotonic(), done
        if self._progress is not None:
            self._task = self._progress.add_task("frames", total=None, completed=done, rate="")

    def frames_per_s(self, done: int) -> float:
        """How fast it went since `begin`, now that so many are done."""
        return (done - self._began_with) / max(time.monotonic() - self._began_at, 1e-9)

    def update(self, done: int, total: int | None) -> None:
        """So many frames of so many are done; None where nobody knows."""
        frames_per_s = self.frames_per_s(done)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total, rate=f"{frames_per_s:.1f} frames/s")
        elif time.monotonic() - self._said_at >= _LINE_S:
            self._said_at = time.monotonic()
            self.say(progress_line(done, total, frames_per_s))


def progress_line(done: int, total: int | None, frames_per_s: float) -> str:
    """Where a job stands, as one line."""
    if total is None:
        return f"{done} frames, {frames_per_s:.1f} frames/s"
    words = f"{done} of {total} frames, {frames_per_s:.1f} frames/s"
    if frames_per_s <= 0 or total < done:
        return words
    minutes, seconds = divmod(round((total - done) / frames_per_s), 60)
    return f"{words}, {minutes} min {seconds:02} s left"


@contextmanager
def open_reporter() -> Iterator[Reporter]:
    """A reporter on standard error, with a bar if that is a terminal."""
    console = Console(file=sys.stderr, highlight=False)
    if not console.is_terminal:
        yield Reporter(console, None)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield Reporter(console, progress)
