"""One log for the service, its libraries, Python's warnings, and anything that native code writes to standard error.

The log goes to standard error, one event per line; standard output is left to the commands. On a terminal it is
formatted for people, otherwise each line is one JSON object. The exception is a crash of the interpreter (a
segmentation fault): faulthandler writes its stack as plain text, because nothing else can run at that point.

Logging never blocks: lines that cannot be written at the moment wait in a bounded queue (`writer.py`).
"""

import faulthandler
import logging
import os
import re
import socket
import stat
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, TextIO

import structlog

from .native_output import NativeOutput
from .rate_limit import RateLimit
from .redact import Redactor
from .render import LogForm, make_formatter
from .writer import LogWriter

LogLevel = Literal["debug", "info", "warning", "error"]

_NATIVE_INTERVAL_S = 10.0
_NATIVE_BURST = 5
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+")
_FLUSH_S = 0.2
_CLOSE_S = 0.8
_STUCK_S = 0.3
"""Seconds without any written line after which a stopping process gives up on its log. With `_CLOSE_S`, it bounds what
the log adds to a stop: 3 s are promised in all, and the service itself takes up to 2.2 s."""


@dataclass(slots=True)
class Log:
    """The open log.

    Attributes:
        redactor: masks secrets in every event; add a config's secrets before anything can log them.
        stream: the real standard error.
    """

    redactor: Redactor
    stream: TextIO
    _handler: logging.Handler

    def configure(self, level: LogLevel, form: LogForm) -> None:
        """Apply the level and format of a config, at the start and at each reload."""
        self._handler.setFormatter(make_formatter(form, self.stream.isatty(), self.redactor))
        logging.getLogger().setLevel(level.upper())


@contextmanager
def open_log(redactor: Redactor) -> Iterator[Log]:
    """Send all logging of this process to standard error while the context is open; initially `info` and `auto`.

    In this time, file descriptor 2 is a pipe that a thread reads: output of native libraries and child processes
    becomes events. The real standard error receives the log itself, and the output of faulthandler.
    """
    take_line = _NativeLines()
    with NativeOutput(take_line) as native, _crash_output(native.real_stderr) as crashes:
        handler = _Handler(native.real_stderr.fileno())
        log = Log(redactor, native.real_stderr, handler)
        with _root_handler(handler), _hooks(crashes):
            log.configure("info", "auto")
            _configure_structlog()
            try:
                yield log
            finally:
                native.stop()
                take_line.close()
                native.keep_open = not handler.stream.close(_CLOSE_S, _STUCK_S)


def flush_log() -> None:
    """Wait a moment for queued lines to be written, before the process ends without closing its log."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Handler):
            handler.stream.drain(_FLUSH_S)


class _NativeLines:
    """Turns lines of native output into events; lines that differ only in numbers count as repetitions."""

    def __init__(self) -> None:
        self._limit = RateLimit(_NATIVE_INTERVAL_S, _NATIVE_BURST)
        self._logger = logging.getLogger("native")

    def __call__(self, line: str) -> None:
        suppressed = self._limit.admit(_CHANGING.sub("#", line))
        if suppressed is not None:
            self._logger.warning("%s", line, extra={"suppressed": suppressed} if suppressed else {})

    def close(self) -> None:
        suppressed = sum(self._limit.take_suppressed().values())
        if suppressed:
            self._logger.warning("repeated native output suppressed", extra={"suppressed": suppressed})


class _Handler(logging.StreamHandler[LogWriter]):
    """Hands formatted events to the writer."""

    terminator = ""  # the writer ends the lines

    def __init__(self, descriptor: int) -> None:
        super().__init__(LogWriter(descriptor, self._dropped_line))

    def handleError(self, record: logging.LogRecord) -> None:
        self.stream.write('{"level": "error", "event": "log event could not be formatted or written"}')

    def flush(self) -> None:
        """Do nothing: logging calls this after each event, and it must not wait."""

    def _dropped_line(self, count: int) -> str:
        event, reason = "%d log lines dropped", "nobody read the log, or it could not be written"
        record = logging.LogRecord("retinad", logging.WARNING, __file__, 0, event, (count,), None)
        record.reason = reason
        return self.format(record)


@contextmanager
def _crash_output(stderr: TextIO) -> Iterator[TextIO]:
    """Standard error for the stack of a crash, without blocking where the kernel allows that.

    Otherwise a crashed process would wait for the reader of its log, and not end. A pipe or a terminal is opened a
    second time in non-blocking mode: a flag on the original descriptor would affect every process that shares it. A
    socket cannot be opened again: it gets a time limit for each write.
    """
    descriptor = stderr.fileno()
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(kind):
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as shared:
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 1000))
    if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
        with suppress(OSError):  # the pipe or terminal belongs to another user
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            descriptor = os.open(f"/proc/self/fd/{descriptor}", flags)
    with open(descriptor, "w", encoding="utf-8", closefd=descriptor != stderr.fileno()) as output:
        yield output


@contextmanager
def _root_handler(handler: logging.Handler) -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = [handler]
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = before
        root.setLevel(level)
        structlog.reset_defaults()


@contextmanager
def _hooks(stream: TextIO) -> Iterator[None]:
    """Log uncaught exceptions. faulthandler writes to the real standard error, because it cannot wait for a thread."""
    before = sys.excepthook, threading.excepthook, sys.unraisablehook, faulthandler.is_enabled()
    sys.excepthook = lambda kind, error, trace: _log_uncaught("uncaught exception", error)
    threading.excepthook = lambda args: _log_uncaught("uncaught exception in a thread", args.exc_value)
    sys.unraisablehook = lambda args: _log_uncaught("unraisable exception", args.exc_value)
    faulthandler.enable(stream)
    try:
        yield
    finally:
        sys.excepthook, threading.excepthook, sys.unraisablehook, was_enabled = before
        faulthandler.disable()
        if was_enabled:
            faulthandler.enable()


def _log_uncaught(event: str, error: BaseException | None) -> None:
    logging.getLogger("retinad").critical(event, exc_info=error)


def _configure_structlog() -> None:
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
