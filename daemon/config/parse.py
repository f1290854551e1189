"""Step 1 of loading a config, parse: turns the file's bytes into tables of plain data, and locates each key."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retinad.pipeline.sources.redact import redact_url

from .errors import Problem
from .keys import show_key
from .locations import KeyPlaces, has_long_key, is_deeper, locate_keys

_LARGEST_FILE = 1 << 20
_DEEPEST = 32
_MOST_CAMERAS = 4096
"""Maximum number of cameras: as many as a subscriber tracks, and four times as many as a model serves. Checking one
camera takes up to 1 ms."""

_HEADER = re.compile(r"[ \t]*(\[[\[\]A-Za-z0-9_. -]{1,64}?)[ \t]*(?:#.*)?")
"""Matches a table's header, such as `[model]`, that an error may quote."""

_TOO_DEEP = "Nested too deeply"


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed config file.

    Attributes:
        file: path of the file.
        data: the file's tables.
        places: where the file's keys are.
    """

    file: Path
    data: Mapping[str, Any] = field(default_factory=dict)
    places: KeyPlaces = field(default_factory=lambda: KeyPlaces((), {}))


def parse(path: Path) -> Document | Problem:
    """Parse a config file. Returns a single problem instead if the file is not TOML or exceeds a limit of size."""
    text = _read_text(path)
    if isinstance(text, Problem):
        return text
    data = _parse_toml(path, text)
    if isinstance(data, Problem):
        return data
    cameras = data.get("camera")
    if isinstance(cameras, list) and len(cameras) > _MOST_CAMERAS:
        message = f"expected at most {_MOST_CAMERAS} cameras, got {len(cameras)}"
        return Problem(str(path), None, None, "camera", message)
    return Document(path, data, locate_keys(text))


def _read_text(path: Path) -> str | Problem:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "a path cannot contain a null character"
        hint = "`retinad config > FILE` writes a default config"
        return Problem(str(path), None, None, "", f"cannot read the config: {reason}", hint)
    if len(content) > _LARGEST_FILE:
        return Problem(str(path), None, None, "", "cannot read the config: the file is larger than 1 MiB")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - (content.rfind(b"\n", 0, error.start) + 1) + 1
        return Problem(str(path), line, column, "", "not UTF-8 text")


def _parse_toml(path: Path, text: str) -> dict[str, Any] | Problem:
    try:
        if not has_long_key(text):
            data = tomllib.loads(text)
            if not is_deeper(data, _DEEPEST):
                return data
        message = _TOO_DEEP
    except RecursionError:
        message = _TOO_DEEP
    except ValueError as error:
        message = str(error)
    return _syntax_problem(path, text, message)


def _syntax_problem(path: Path, text: str, message: str) -> Problem:
    # At the place that tomllib names, with the key of the statement there; if it names the end of the file, at the last
    # key before it.
    reason, _, place = message.partition(" (at ")
    numbers = re.fullmatch(r"line (\d+), column (\d+)\)", place)
    lines = text.split("\n")
    line, column = (int(numbers[1]), int(numbers[2])) if numbers else (len(lines), len(lines[-1]) + 1)
    places = locate_keys(text)
    last = places.open_at(line, column) if numbers else places.last_before(line, column)
    if last and not numbers:
        line, column = last.line, last.column
    hint = "a string needs quotes" if "Invalid value" in reason else ""
    if "declaration" in reason and (header := _HEADER.fullmatch(lines[line - 1])):
        reason += f", got {header[1]}"
    key = redact_url(show_key(last.path)) if last else ""
    return Problem(str(path), line, column, key, f"not TOML: {reason}", hint)
