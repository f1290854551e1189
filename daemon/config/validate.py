"""Step 3 of loading a config, validate: checks each table on its own for unknown keys, wrong types and wrong values.

A key that breaks the rules of its table is reported and left out, so that the next step can still check the others.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from retinad.client.wire import is_camera_name

from .keys import KeyPath, new_name, suggest
from .problems import KeyFault
from .tables import (
    LONGEST,
    NAME_PATTERN,
    PATTERN_WORDS,
    TABLES,
    WORD_PATTERNS,
    CameraTable,
    ModelTable,
    PublishTable,
    ServiceTable,
    StreamTable,
    sub_table,
)

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
_RANGE_WORDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}

_WORD = re.compile(r"[A-Za-z0-9 _.-]{1,32}")
"""Strings from the file that an error may quote, where a key takes a choice, a name or a device: never an address."""
_NAME_LIKE = re.compile(r"[\w .,!+&'()-]{1,64}")
"""Names that an error may quote: letters of any language, but nothing that an address or its password needs."""

_PLAIN_TYPES = ("int_type", "float_type", "bool_type")
_PLAIN = re.compile(r"true|false|[0-9]{1,9}(?:\.[0-9]{1,9})?")


_NO_CAMERAS = KeyFault(
    ("camera",), "expected at least one [[camera]]", 'the simplest: name = "demo", source = "synthetic:"'
)


@dataclass(frozen=True, slots=True)
class Checked(Generic[Table]):
    """A checked table.

    Attributes:
        table: the table without the keys that break its rules; None if it is invalid even without them.
        faults: what is wrong.
        left_out: paths of the keys that broke the rules.
    """

    table: Table | None
    faults: tuple[KeyFault, ...] = ()
    left_out: frozenset[KeyPath] = frozenset()


@dataclass(frozen=True, slots=True)
class Tables:
    """The checked tables of a config. A table that is invalid as a whole is replaced by its defaults.

    Attributes:
        service, publish, model, stream: the tables.
        cameras: the cameras by their number in the file, without those that are invalid as a whole.
        faults: what is wrong.
        left_out: paths of the keys that were left out.
    """

    service: ServiceTable
    publish: PublishTable
    model: ModelTable
    stream: StreamTable
    cameras: Mapping[int, CameraTable]
    faults: tuple[KeyFault, ...]
    left_out: frozenset[KeyPath]

    def is_left_out(self, path: KeyPath) -> bool:
        """Whether a key was left out, alone or with the table around it."""
        return any(path[:length] in self.left_out for length in range(1, len(path) + 1))

    def independent(self, faults: Iterable[KeyFault]) -> tuple[KeyFault, ...]:
        """The faults of a later step, except those at keys left out here, which are consequences of earlier faults."""
        return tuple(fault for fault in faults if not self.is_left_out(fault.path))


def validate(data: Mapping[str, Any], *, cameras: bool = True) -> Tables:
    """Check all tables.

    Args:
        data: the config with its overrides.
        cameras: whether the config must have cameras.
    """
    service = validate_table(ServiceTable, data.get("service", {}), ("service",))
    publish = validate_table(PublishTable, data.get("publish", {}), ("publish",))
    model = validate_table(ModelTable, data.get("model", {}), ("model",))
    stream = validate_table(StreamTable, data.get("stream", {}), ("stream",))
    listed = _listed_cameras(data) if cameras else []
    own = [validate_table(CameraTable, camera, ("camera", number)) for number, camera in enumerate(listed)]
    checked: list[Checked[Any]] = [service, publish, model, stream, *own]
    left_out = frozenset(path for table in checked for path in table.left_out)
    faults = [*_unknown_tables(data), *(fault for table in checked for fault in table.faults)]
    faults += [fault for fault in _repeated_names(listed) if fault.path not in left_out]
    if cameras and not listed:
        faults.append(_NO_CAMERAS)
    return Tables(
        service=service.table or ServiceTable(),
        publish=publish.table or PublishTable(),
        model=model.table or ModelTable(),
        stream=stream.table or StreamTable(),
        cameras={number: camera.table for number, camera in enumerate(own) if camera.table is not None},
        faults=tuple(faults),
        left_out=left_out,
    )


def validate_table(model: type[Table], data: object, path: KeyPath) -> Checked[Table]:
    """Check the table at `path`."""
    try:
        return Checked(model.model_validate(data))
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=True, include_input=False)
    faults = tuple(_fault(model, data, path, detail) for detail in details)
    wrong = {detail["loc"][0] for detail in details if detail["loc"]}
    if not isinstance(data, dict):
        return Checked(None, faults, frozenset({path}))
    try:
        table = model.model_validate({key: value for key, value in data.items() if key not in wrong})
    except ValidationError:  # a required key is missing or wrong
        table = None
    return Checked(table, faults, frozenset((*path, key) for key in wrong))


def _listed_cameras(data: Mapping[str, Any]) -> list[object]:
    cameras = data.get("camera")
    return cameras if isinstance(cameras, list) else []


def _unknown_tables(data: Mapping[str, Any]) -> Iterator[KeyFault]:
    known = [*TABLES, "camera"]
    for name in data:
        if name not in known:
            yield _unknown((name,), "table", known)


def _repeated_names(cameras: Sequence[object]) -> Iterator[KeyFault]:
    # Of the data, so that cameras that are refused for another reason count too.
    seen: dict[str, int] = {}
    for number, camera in enumerate(cameras):
        name = camera.get("name") if isinstance(camera, dict) else None
        if isinstance(name, str):
            if name in seen:
                path: KeyPath = ("camera", number, "name")
                named = f'"{name}"' if is_camera_name(name) else "this name"
                yield KeyFault(path, f"{named} is already the camera", other=("camera", seen[name], "name"))
            seen.setdefault(name, number)


def _unknown(path: KeyPath, kind: str, known: Sequence[str]) -> KeyFault:
    renamed = new_name(".".join(part for part in path if isinstance(part, str)))
    if renamed is not None:
        return KeyFault(path, "was renamed", f"use `{renamed}`")
    return KeyFault(path, f"unknown {kind}", suggest(str(path[-1]), known) or f"known {kind}s: {', '.join(known)}")


def _fault(model: type[BaseModel], data: object, path: KeyPath, detail: ErrorDetails) -> KeyFault:
    place, value = _follow(data, detail["loc"])
    if detail["type"] == "extra_forbidden":
        return _unknown(path + place, "key", list(_table_at(model, place[:-1]).model_fields))
    if detail["type"] == "missing":
        return KeyFault(path + tuple(detail["loc"]), "required key is missing")
    message = f"expected {_expected(detail)}, got {_got(value, detail)}"
    return KeyFault(path + place, message, _nearest_choice(value, detail) or _other_form(value, detail))


def _follow(data: object, loc: Sequence[str | int]) -> tuple[KeyPath, object]:
    # The part of pydantic's location that is in the data (the rest names branches of unions), and the value there.
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
    pattern = context.get("pattern")
    if pattern is not None and isinstance(value, str):
        return _got_text(value, pattern)
    if "expected" in context and isinstance(value, str) and _WORD.fullmatch(value):
        return f'"{value}"'
    if isinstance(value, str | list) and "length" in str(detail.get("ctx")):
        return f"{_describe(value)} of length {len(value)}"
    return _describe(value)


def _got_text(text: str, pattern: str) -> str:
    most = LONGEST.get(pattern)
    if not text:
        return "an empty string"
    if most is not None and len(text) > most:
        return f"{len(text)} characters"
    if pattern not in WORD_PATTERNS or not (_WORD if pattern != NAME_PATTERN else _NAME_LIKE).fullmatch(text):
        return "a string"
    wrong = sorted({letter for letter in text if not is_camera_name(letter)}) if pattern == NAME_PATTERN else []
    if not wrong:
        return f'"{text}"'
    shown = ", ".join("a space" if letter == " " else letter for letter in wrong)
    return f'"{text}" ({shown} {"is" if len(wrong) == 1 else "are"} not allowed)'


def _other_form(value: object, detail: ErrorDetails) -> str:
    # The same value as the key takes it; shown only where it cannot be a secret.
    if not isinstance(value, str):
        return ""
    if detail["type"] == "list_type":
        scheme = re.match(r"(?:tcp|ipc)://", value)
        text = f"{scheme[0]}..." if scheme else value if _WORD.fullmatch(value) else "..."
        return f'write ["{text}"]'
    if detail["type"] in _PLAIN_TYPES and _PLAIN.fullmatch(value):
        return f"write {value} without quotes"
    return ""


def _describe(value: object) -> str:
    # Numbers and booleans are quoted; anything else is described by its type only, since it may hold a secret.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) < 1 << 64:
        return str(value)
    if isinstance(value, float):
        return repr(value)
    names = {int: "a number beyond 64 bits", str: "a string", list: "a list", dict: "a table"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "a date or time")


def _nearest_choice(value: object, detail: ErrorDetails) -> str:
    # The value selects the nearest choice, but only the choice is shown.
    expected = str(detail.get("ctx", {}).get("expected", ""))
    choices = [word.strip("' ") for word in expected.replace(" or ", ",").split(",")]
    return suggest(value, choices) if isinstance(value, str) and expected else ""
