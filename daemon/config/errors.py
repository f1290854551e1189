"""Errors of the config: every problem at once, each with its place in the file, never with a value that may be secret.

ConfigError     the config cannot be used; `problems` lists everything that is wrong
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a config.

    Attributes:
        file: the file, or `environment` or `command line` for an override.
        line: 1-based line, or None if the problem has no place in the file.
        column: 1-based column in characters, or None.
        key: dotted path of the key, such as `camera[0].source`, or the name of the variable or option; empty for the
            file as a whole.
        message: what was expected and what came. It quotes a string from the file only if that is a short word where
            the key takes a choice, a name or a device: any other string may be a secret.
        hint: what to do, such as the key that was probably meant; may be empty.
    """

    file: str
    line: int | None
    column: int | None
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        parts = [place, self.key, self.message] if self.key else [place, self.message]
        return ": ".join(parts) + (f" ({self.hint})" if self.hint else "")


class ConfigError(Exception):
    """The config cannot be used. Its text has one line per problem and never holds a secret."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
