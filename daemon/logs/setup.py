"""One log for the service, its libraries, Python's warnings, and anything that native code writes to standard error.

The log goes to standard error, one event per line; standard output is left to the commands. On a terminal it is
formatted for people, otherwise each line is one JSON object. The exception is a crash of the interpreter (a
segmentation fault): faulthandler writes its stack as plain text, because nothing else can run at that point.
"""

import faulthandler
import logging
import re
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

LogLevel = Literal["debug", "info", "warning", "error"]

_NATIVE_INTERVAL_S = 10.0
_NATIVE_BURST = 5
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+")


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
    with NativeOutput(take_line) as native:
        log = Log(redactor, native.real_stderr, _Handler(native.real_stderr))
        with _root_handler(log._handler), _hooks(native.real_stderr):
            log.configure("info", "auto")
            _configure_structlog()
            try:
                yield log
            finally:
                native.stop()
                take_line.close()


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


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to the real standard error. A line that cannot be written is lost: there is nowhere to report it."""

    def handleError(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):
            self.stream.write('{"level": "error", "event": "log event could not be formatted or written"}\n')


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
