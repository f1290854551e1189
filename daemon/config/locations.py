"""Locates each key in a TOML text, for error messages: tomllib returns values without positions.

The scanner reads keys and skips values. It is short, because it leaves the detection of invalid TOML to tomllib; in an
invalid text it still finds the last key before the error.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from .keys import KeyPath

_MOST_PARTS = 100
"""Maximum number of parts in a dotted key. tomllib's use of memory is quadratic in this number: 258 MiB for 8000."""

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""{1,3}(?!")|' r"'''.*?'''{1,3}(?!')|" r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]*")


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """A key and its position: `line` and `column`, in characters, both counted from 1."""

    path: KeyPath
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class KeyPlaces:
    """The keys of one TOML text, in the order of the text."""

    places: tuple[KeyPlace, ...]
    first: dict[KeyPath, KeyPlace] = field(repr=False)
    complete_to: int = 0
    """Line up to which the text was scanned without an open string, list or table."""

    def find(self, path: KeyPath) -> KeyPlace | None:
        """The place of a key. If the text lacks the key: the place of the innermost table around it."""
        for length in range(len(path), 0, -1):
            if place := self.first.get(path[:length]):
                return place
        return None

    def last_before(self, line: int, column: int) -> KeyPlace | None:
        """The last key that starts at or before a place."""
        before = [place for place in self.places if (place.line, place.column) <= (line, column)]
        return before[-1] if before else None

    def open_at(self, line: int, column: int) -> KeyPlace | None:
        """The key that a place belongs to: the key on this line, or that of a value that began on an earlier line."""
        last = self.last_before(line, column)
        return None if last and last.line < min(line, self.complete_to + 1) else last


def locate_keys(text: str) -> KeyPlaces:
    """Scan a TOML text with `\\n` line ends. Never raises: in an invalid text it stops at the first error."""
    scanner = _Scanner(text)
    with suppress(_OddityError, RecursionError):
        scanner.scan_document()
    places = tuple(scanner.places)
    return KeyPlaces(places, {place.path: place for place in reversed(places)}, scanner.complete_to)


def has_long_key(text: str) -> bool:
    """Whether a TOML text has a dotted key of more than 100 parts, which is too expensive to parse."""
    try:
        _Scanner(text).scan_document()
    except _LongKeyError:
        return True
    except (_OddityError, RecursionError):
        return False
    return False


def is_deeper(data: object, levels: int) -> bool:
    """Whether tables and lists are nested more than `levels` deep; tomllib has no limit of its own for dotted keys."""
    parts = [data]
    for _ in range(levels + 1):
        parts = [item for part in parts for item in _items(part)]
    return bool(parts)


def _items(part: object) -> Iterable[object]:
    if isinstance(part, dict):
        return part.values()
    return part if isinstance(part, list) else ()


class _OddityError(Exception):
    """The text is not TOML from the current position on."""


class _LongKeyError(_OddityError):
    """A dotted key has too many parts."""


class _Scanner:
    def __init__(self, text: str) -> None:
        self.places: list[KeyPlace] = []
        self.complete_to = 0
        self._text = text
        self._at = 0
        self._last_index: dict[KeyPath, int] = {}
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]

    def scan_document(self) -> None:
        table: KeyPath = ()
        while self._skip(_BLANK) < len(self._text):
            if self._text[self._at] == "[":
                table = self._scan_header()
            else:
                self._scan_pair(table)
            self.complete_to = bisect_right(self._lines, self._at)

    def _scan_header(self) -> KeyPath:
        start = self._at
        brackets = 2 if self._text.startswith("[[", start) else 1
        self._at += brackets
        parts = self._scan_dotted_key()
        self._expect("]" * brackets)
        path = self._enter((), parts[:-1]) + parts[-1:]
        if brackets == 2:
            self._last_index[path] = self._last_index.get(path, -1) + 1
        path = self._enter(path[:-1], path[-1:])
        for length in range(1, len(path) + 1):
            self._note(path[:length], start)
        return path

    def _scan_pair(self, table: KeyPath) -> None:
        start = self._at
        parts = self._scan_dotted_key()
        for length in range(1, len(parts) + 1):
            self._note(table + parts[:length], start)
        self._expect("=")
        self._skip(_SPACE)
        self._scan_value(table + parts)

    def _scan_dotted_key(self) -> tuple[str, ...]:
        parts = []
        while True:
            self._skip(_SPACE)
            parts.append(self._scan_key())
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return tuple(parts)
            if len(parts) == _MOST_PARTS:
                raise _LongKeyError
            self._at += 1

    def _scan_key(self) -> str:
        key = self._take(_KEY)
        if key.startswith('"'):
            return re.sub(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", _unescape, key[1:-1])
        return key.strip("'")

    def _scan_value(self, path: KeyPath) -> None:
        match self._text[self._at : self._at + 1]:
            case "[":
                self._scan_array(path)
            case "{":
                self._scan_inline_table(path)
            case '"' | "'":
                self._take(_STRING)
            case _:
                self._skip(_SCALAR)

    def _scan_array(self, path: KeyPath) -> None:
        self._at += 1
        index = 0
        while not self._text.startswith("]", self._skip(_BLANK)):
            self._note((*path, index), self._at)
            self._scan_value((*path, index))
            index += 1
            self._scan_comma("]")
        self._at += 1

    def _scan_inline_table(self, path: KeyPath) -> None:
        self._at += 1
        while not self._text.startswith("}", self._skip(_BLANK)):
            self._scan_pair(path)
            self._scan_comma("}")
        self._at += 1

    def _scan_comma(self, closing: str) -> None:
        at = self._skip(_BLANK)
        if self._text.startswith(",", at):
            self._at += 1
        elif not self._text.startswith(closing, at):
            raise _OddityError

    def _enter(self, path: KeyPath, parts: KeyPath) -> KeyPath:
        for part in parts:
            path = (*path, part)
            if path in self._last_index:
                path = (*path, self._last_index[path])
        return path

    def _skip(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._at

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if not found:
            raise _OddityError
        self._at = found.end()
        return found.group()

    def _expect(self, text: str) -> None:
        if not self._text.startswith(text, self._at):
            raise _OddityError
        self._at += len(text)

    def _note(self, path: KeyPath, offset: int) -> None:
        line = bisect_right(self._lines, offset)
        self.places.append(KeyPlace(path, line, offset - self._lines[line - 1] + 1))


def _unescape(found: re.Match[str]) -> str:
    code = found.group(1)
    if code[0] in "uU":
        return chr(min(int(code[1:], 16), 0x10FFFF))
    return {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}.get(code, code)
