"""Config errors, which report every problem at once.

Each problem has its place in the file, and never shows a value that may be secret.

ConfigError     the config cannot be used; `problems` lists everything that is wrong
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a config.

    Attributes:
        file: path of the file, or `environment` or `command line` for an override.
        line: 1-based line, or None if the problem has no place in the file.
        column: 1-based column in characters, or None.
        key: dotted path of the key, such as `camera[0].source`, or the name of the variable or option; empty for the
            file as a whole.
        message: what was expected and what was found. A string from the file is quoted only if it is a short word and
            its key takes a choice, a name or a device: any other string may be a secret.
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
    """The config cannot be used. The error's text has one line per problem and never contains a secret."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
