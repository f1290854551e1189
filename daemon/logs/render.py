"""Formats events as lines, for people or as JSON, with secrets masked and control characters escaped."""

import logging
import math
from collections.abc import Callable
from typing import Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from .redact import Redactor

LogForm = Literal["auto", "console", "json"]

_FIRST = ("time", "level", "logger", "event")
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def make_formatter(form: LogForm, terminal: bool, redactor: Redactor) -> logging.Formatter:
    """The formatter of the log's only handler.

    Args:
        form: lines for people, JSON lines, or a choice that depends on `terminal`.
        terminal: whether the log goes to a terminal, where the format for people has colours.
        redactor: masks secrets in every value.
    """
    for_people = form == "console" or (form == "auto" and terminal)
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if for_people else "iso", utc=not for_people, key="time"),
    ]
    render: Processor = structlog.processors.JSONRenderer()
    if for_people:
        # Plain tracebacks: rich ones print local variables, which may hold secrets.
        render = structlog.dev.ConsoleRenderer(
            colors=terminal, timestamp_key="time", exception_formatter=structlog.dev.plain_traceback
        )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder()],
        processors=[
            *shared,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            _Plain(redactor.redact),
            render,
        ],
    )


class _Plain:
    """Converts every value of an event to JSON types, masks secrets and escapes control characters."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        ordered = {key: event[key] for key in _FIRST if key in event} | dict(event)
        return {self._text(key): self._value(value) for key, value in ordered.items()}

    def _value(self, value: object) -> object:
        match value:
            case bool() | int() | None:
                return value
            case float():
                return value if math.isfinite(value) else str(value)
            case str():
                return self._text(value.rstrip())
            case dict():
                return {self._text(str(key)): self._value(item) for key, item in value.items()}
            case list() | tuple() | set() | frozenset():
                return [self._value(item) for item in value]
            case _:
                return self._text(str(value))

    def _text(self, text: str) -> str:
        return self._redact(str(text)).translate(_CONTROL)
