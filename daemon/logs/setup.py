"""One log for everything: the service, its libraries, Python's warnings, and what native code writes to standard error.

The log goes to standard error, one event a line: standard output is for what commands print. On a terminal it is for
people, else each line is one JSON object. The exception is a crash of the interpreter (a segmentation fault): its
stack is plain text, written by faulthandler, since nothing else can run then.
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
        redactor: masks secrets in every event; add the secrets of a config to it before anything can log them.
        stream: the real standard error.
    """

    redactor: Redactor
    stream: TextIO
    _handler: logging.Handler

    def configure(self, level: LogLevel, form: LogForm) -> None:
        """Take the level and the form of a config, at the start and at each reload."""
        self._handler.setFormatter(make_formatter(form, self.stream.isatty(), self.redactor))
        logging.getLogger().setLevel(level.upper())


@contextmanager
def open_log(redactor: Redactor) -> Iterator[Log]:
    """Send all logging of this process to standard error until the context ends; `info` and `auto` at first.

    File descriptor 2 is a pipe meanwhile, which a thread reads: what native libraries and child processes write there
    becomes events. The real standard error gets the log itself, and what faulthandler writes.
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
    """Turns lines of native output into events; lines that differ in numbers only count as the same line."""

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
            self._logger.warning("lines like earlier ones were left out", extra={"suppressed": suppressed})


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to the real standard error. A line that cannot be written is lost: there is nowhere to complain."""

    def handleError(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):
            self.stream.write('{"level": "error", "event": "an event could not be written to the log"}\n')


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
    """Log what nobody caught; faulthandler writes to the real standard error, since it cannot wait for a thread."""
    before = sys.excepthook, threading.excepthook, sys.unraisablehook, faulthandler.is_enabled()
    sys.excepthook = lambda kind, error, trace: _log_uncaught("uncaught exception", error)
    threading.excepthook = lambda args: _log_uncaught("uncaught exception in a thread", args.exc_value)
    sys.unraisablehook = lambda args: _log_uncaught("exception where none can be raised", args.exc_value)
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
