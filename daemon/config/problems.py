"""Collects what is wrong with a config: each problem with its place, pydantic's errors in the project's words."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from retinad.pipeline.sources.redact import redact_url

from .errors import ConfigError, KeyPath, Problem, describe, show_key, suggest
from .locations import KeyPlaces
from .tables import PATTERN_WORDS, WORD_PATTERNS

Table = TypeVar("Table", bound=BaseModel)

_EXPECTED_TYPE = {
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "a table",
    "finite_number": "a finite number",
}
_MOST_PROBLEMS = 100
"""That are said: a reload says them in one line of the log, and a file has room for 100,000."""

_WORD = re.compile(r"[A-Za-z0-9 _.-]{1,32}")
"""What is shown of a string from the file, where a key takes a choice, a name or a device: never an address."""

_RANGE_WORDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


@dataclass(slots=True)
class Report:
    """The problems found so far.

    Attributes:
        file: the config file.
        places: where its keys stand.
        variables: environment variables, and options of the command line, by the key they override; a problem of such
            a key names them.
        problems: what was found, in no particular order.
    """

    file: Path
    places: KeyPlaces
    variables: Mapping[KeyPath, str]
    problems: list[Problem] = field(default_factory=list)
    _broken: set[KeyPath] = field(default_factory=set)

    def add(self, path: KeyPath, message: str, hint: str = "") -> None:
        """Note that something is wrong with a key. What follows from a key that was left out as broken is not noted."""
        if path in self._broken:
            return
        variable = next((self.variables[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.variables), None)
        if variable is not None:
            file = "command line" if variable.startswith("--") else "environment"
            self.problems.append(Problem(file, None, None, variable, message, hint))
            return
        place = self.places.find(path)
        line, column = (place.line, place.column) if place else (None, None)
        self.problems.append(Problem(str(self.file), line, column, redact_url(show_key(path)), message, hint))

    def is_broken(self, path: KeyPath) -> bool:
        """Whether a key was left out because it breaks its table's rules."""
        return path in self._broken

    def add_variable(self, name: str, message: str, hint: str = "") -> None:
        """Note that an environment variable is wrong by its name."""
        self.problems.append(Problem("environment", None, None, redact_url(name), message, hint))

    def validate(self, model: type[Table], data: object, path: KeyPath) -> Table | None:
        """The table as its model, without the keys that break the model's rules, which are noted; None if it cannot be.

        So what is wrong beyond types is found in the other keys at once.
        """
        try:
            return model.model_validate(data)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=True, include_input=False)
        for detail in details:
            self._add_detail(model, data, path, detail)
        broken = {detail["loc"][0] for detail in details if detail["loc"]}
        if not isinstance(data, dict) or not broken & data.keys():
            return None
        self._broken |= {(*path, key) for key in broken}
        try:
            return model.model_validate({key: value for key, value in data.items() if key not in broken})
        except ValidationError:
            return None

    def raise_if_any(self) -> None:
        """Raise ConfigError with the problems, in the order of the file, if there are any; a hundred at most."""
        ordered = sorted(self.problems, key=lambda problem: (problem.line or 0, problem.column or 0))
        if (more := len(ordered) - _MOST_PROBLEMS) > 0:
            ordered[_MOST_PROBLEMS:] = [Problem(str(self.file), None, None, "", f"{more} more are wrong")]
        if ordered:
            raise ConfigError(ordered)

    def _add_detail(self, model: type[BaseModel], data: object, path: KeyPath, detail: ErrorDetails) -> None:
        place, value = _follow(data, detail["loc"])
        if detail["type"] == "extra_forbidden":
            known = list(_table_at(model, place[:-1]).model_fields)
            self.add(path + place, "unknown key", suggest(str(place[-1]), known) or f"known keys: {', '.join(known)}")
        elif detail["type"] == "missing":
            self.add(path + tuple(detail["loc"]), "required key is missing")
        else:
            message = f"expected {_expected(detail)}, got {_got(value, detail)}"
            self.add(path + place, message, _nearest_choice(value, detail))


def _follow(data: object, loc: Sequence[str | int]) -> tuple[KeyPath, object]:
    """The part of pydantic's location that is in the data (the rest names branches of unions), and the value there."""
    path: KeyPath = ()
    for part in loc:
        in_list = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if not in_list and not (isinstance(data, dict) and part in data):
            break
        data = data[part]  # type: ignore[index]  # checked just above
        path = (*path, part)
    return path, data


def _table_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel]:
    for part in path:
        model = sub_table(model, str(part)) or model
    return model


def sub_table(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The model of the table that stands under a key, or None if the key holds a plain value."""
    annotation = model.model_fields[key].annotation
    for kind in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _expected(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if detail["type"] in _EXPECTED_TYPE:
        return _EXPECTED_TYPE[detail["type"]]
    if detail["type"] == "string_pattern_mismatch":
        return PATTERN_WORDS.get(context["pattern"], "another form")
    if "expected" in context:
        return f"one of {context['expected']}"
    if "min_length" in context or "max_length" in context:
        least, most = context.get("min_length"), context.get("max_length")
        return f"a length of at least {least}" if least is not None else f"a length of at most {most}"
    bounds = [f"{words} {context[name]}" for name, words in _RANGE_WORDS.items() if name in context]
    return bounds[0] if bounds else "another value"


def _got(value: object, detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    takes_word = "expected" in context or context.get("pattern") in WORD_PATTERNS
    if takes_word and isinstance(value, str) and _WORD.fullmatch(value):
        return f'"{value}"'
    if isinstance(value, str | list) and "length" in str(detail.get("ctx")):
        return f"{describe(value)} of length {len(value)}"
    return describe(value)


def _nearest_choice(value: object, detail: ErrorDetails) -> str:
    """A suggestion among the known choices; made from the value, but it shows only the choice."""
    expected = str(detail.get("ctx", {}).get("expected", ""))
    choices = [word.strip("' ") for word in expected.replace(" or ", ",").split(",")]
    return suggest(value, choices) if isinstance(value, str) and expected else ""
