"""Writes the log in a separate thread, so that code that logs never waits for the reader of the log.

A pipe that nobody reads (`| less`, a stopped collector), a paused terminal or a hung disk blocks that thread alone.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

MOST_BYTES = 1 << 20
"""Maximum size of the queued lines, in bytes: minutes of an ordinary log. Further lines are dropped and counted."""

_RETRY_S = 1.0


class LogWriter:
    """A bounded queue of lines, and the thread that writes them to a descriptor. Thread-safe; no call blocks.

    Args:
        descriptor: where the lines go; it stays open.
        dropped_line: renders the line that says how many lines were dropped.
    """

    def __init__(self, descriptor: int, dropped_line: Callable[[int], str]) -> None:
        self._descriptor = descriptor
        self._dropped_line = dropped_line
        self._lines: deque[tuple[bytes, int]] = deque()  # with the number of events that each line stands for
        self._waiting_bytes = 0
        self._dropped = 0
        self._writing = False
        self._failing = False
        self._written = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line, given without its newline; drop and count it if the queue is full."""
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._waiting_bytes + len(data) > MOST_BYTES:
                self._dropped += 1
                return
            self._report_dropped()
            self._append(data, 1)

    def drain(self, within_s: float) -> bool:
        """Wait up to `within_s` seconds until all lines are written. Returns whether all are written."""
        until = time.monotonic() + within_s
        with self._changed:
            while self._lines or self._writing or self._has_news:
                if not self._changed.wait(until - time.monotonic()):
                    return False
            return True

    def close(self, within_s: float, stuck_s: float) -> bool:
        """Write the queued lines, and end the thread. A thread that is stuck in a write is abandoned with its lines.

        Args:
            within_s: maximum time for writing all lines, in seconds.
            stuck_s: seconds without any written line after which the thread counts as stuck.

        Returns:
            Whether the thread has ended, so that the descriptor may be closed.
        """
        until, before = time.monotonic() + within_s, -1
        while self._written != before and time.monotonic() < until:
            before = self._written
            if self.drain(stuck_s):
                break
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(0.1)
        return not self._thread.is_alive()

    @property
    def _has_news(self) -> bool:
        # While writing fails there is no point in saying so; the next event tries again.
        return self._dropped > 0 and not self._failing

    def _run(self) -> None:
        while (line := self._next()) is not None:
            data, events = line
            fits = self._put_out(data)
            with self._changed:
                self._writing = False
                self._failing = not fits
                self._written += 1
                self._dropped += 0 if fits else events
                self._changed.notify_all()

    def _next(self) -> tuple[bytes, int] | None:
        with self._changed:
            while not self._closed:
                if not self._lines and self._has_news:
                    self._report_dropped()
                if self._lines:
                    data, events = self._lines.popleft()
                    self._waiting_bytes -= len(data)
                    self._writing = True
                    return data, events
                self._changed.wait()
            return None

    def _append(self, data: bytes, events: int) -> None:
        self._lines.append((data, events))
        self._waiting_bytes += len(data)
        self._changed.notify_all()

    def _report_dropped(self) -> None:
        if self._dropped:
            count, self._dropped = self._dropped, 0
            self._append(self._dropped_line(count).encode("utf-8", "backslashreplace") + b"\n", count)

    def _put_out(self, data: bytes) -> bool:
        """Write all of `data`. Returns False if that is impossible: the disk is full, or the reader is gone."""
        rest = memoryview(data)
        while rest and not self._closed:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another process has made the descriptor, which both share, non-blocking
                self._await_room()
            except OSError:
                return False
        return True

    def _await_room(self) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        with suppress(OSError):
            poll.poll(_RETRY_S * 1000)
