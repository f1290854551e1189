"""Turns faults of keys into problems with a place: the line in the file, or the variable or option that set the key."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from retinad.pipeline.sources.redact import redact_url

from .errors import ConfigError, Problem
from .keys import KeyPath, show_key
from .locations import KeyPlaces

_MOST_PROBLEMS = 100
"""Maximum number of reported problems: a reload logs them in one line, and a file has room for 100,000 problems."""


@dataclass(frozen=True, slots=True)
class KeyFault:
    """Something that is wrong with a key, without its place yet. The validate and resolve steps return faults.

    Attributes:
        path: path of the key.
        message: see `Problem`.
        hint: see `Problem`.
        other: another key whose place is appended to the message, or None.
    """

    path: KeyPath
    message: str
    hint: str = ""
    other: KeyPath | None = None


@dataclass(frozen=True, slots=True)
class Origins:
    """Where the values of a merged config come from.

    Attributes:
        file: the config file.
        places: where the file's keys are.
        overrides: for each overridden key, the environment variable or command-line option that set it.
    """

    file: Path
    places: KeyPlaces
    overrides: Mapping[KeyPath, str]

    def locate(self, fault: KeyFault) -> Problem:
        """Add the place: the innermost override around the key, else the key's line in the file."""
        path, message = fault.path, fault.message
        if fault.other is not None:
            other = self.places.find(fault.other)
            message += f" at line {other.line}" if other else f" {show_key(fault.other)}"
        around = (self.overrides.get(path[:length]) for length in range(len(path), 0, -1))
        override = next((name for name in around if name is not None), None)
        if override is not None:
            file = "command line" if override.startswith("--") else "environment"
            return Problem(file, None, None, override, message, fault.hint)
        place = self.places.find(path)
        line, column = (place.line, place.column) if place else (None, None)
        return Problem(str(self.file), line, column, redact_url(show_key(path)), message, fault.hint)

    def refuse(self, faults: Iterable[KeyFault], problems: Iterable[Problem] = ()) -> None:
        """Raise ConfigError if there are any faults or problems. It lists at most 100, in the order of the file."""
        found = [*problems, *map(self.locate, faults)]
        found.sort(key=lambda problem: (problem.line or 0, problem.column or 0))
        if (more := len(found) - _MOST_PROBLEMS) > 0:
            found[_MOST_PROBLEMS:] = [Problem(str(self.file), None, None, "", f"{more} more problems are not listed")]
        if found:
            raise ConfigError(found)
