"""Why a config is refused: every problem at once, with its place in the file, never with a value that may be secret.

ConfigError     the config cannot be used; `problems` holds all that is wrong with it
"""

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]
"""Keys and list indices from the top of the file down to a value."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a config.

    Attributes:
        file: the file, or `environment` or `command line` for an override.
        line: 1-based line, or None where the problem has no place in the file.
        column: 1-based column in characters, or None.
        key: dotted path of the key, such as `camera[0].source`, or the variable's or option's name; empty for the file
            as a whole.
        message: what was expected and what came. A string from the file only if it is a short word where the key takes
            a choice, a name or a device: any other may be a secret.
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
    """The config cannot be used. Its text has one line a problem; it never holds a secret."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def show_key(path: KeyPath) -> str:
    """A key path as a person writes it: `camera[0].source`. Keys that TOML would quote are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else json.dumps(part))
    return text


def suggest(word: str, known: Sequence[str]) -> str:
    """`did you mean ...?` for the known word nearest to `word`, or an empty string if none is near."""
    plain = word.lower().replace("-", "_")
    near = difflib.get_close_matches(plain, [name.lower() for name in known], n=1, cutoff=0.6)
    matches = [name for name in known if name.lower() in near]
    return f"did you mean `{matches[0]}`?" if matches else ""


def describe(value: object) -> str:
    """What came, for an error message: numbers and truth values as they are, of anything else only the type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) < 1 << 64:
        return str(value)
    if isinstance(value, float):
        return repr(value)
    names = {int: "a number beyond 64 bits", str: "a string", list: "a list", dict: "a table"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "a date or time")
