"""Step 2 of loading a config, merge: environment variables and command-line options override the file's values.

A variable is `RETINAD_<TABLE>__<KEY>`. A `RETINAD_` variable that names no key is a problem, since a misspelt override
would otherwise be ignored silently. The environment is an argument: only `load.py`, `job.py`, `kernel_cache.py`,
`systemd.py` and `control.py` read the process's own.
"""

import copy
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, SecretStr

from retinad.client.wire import is_camera_name
from retinad.pipeline.sources.redact import redact_url

from .errors import Problem
from .keys import KeyPath, new_name, suggest
from .service_links import is_service_link
from .tables import TABLES, CameraTable, sub_table

PREFIX = "RETINAD_"


@dataclass(frozen=True, slots=True)
class Override:
    """A key that the command line sets.

    Attributes:
        name: the option, such as `--preset`.
        table: name of the key's table.
        key: name of the key.
        value: the key's value, in the type that it would have in the file.
    """

    name: str
    table: str
    key: str
    value: object


@dataclass(frozen=True, slots=True)
class Merged:
    """The config with its overrides.

    Attributes:
        data: the tables.
        overrides: for each overridden key, the variable or option that set it.
        problems: variables that name no key, or keys of two cameras.
        links: variables that Kubernetes or Docker set for a service named retinad; they are ignored.
    """

    data: Mapping[str, Any]
    overrides: Mapping[KeyPath, str]
    problems: tuple[Problem, ...]
    links: tuple[str, ...] = ()


def merge(
    data: Mapping[str, Any],
    environment: Mapping[str, str],
    options: Iterable[Override] = (),
    only: Collection[str] | None = None,
) -> Merged:
    """Override the file's values with the environment, and both with the options.

    Args:
        data: the file's tables; not changed.
        environment: variables; those without the prefix are ignored.
        options: the keys that the command line sets.
        only: tables to use; the other tables and their variables are ignored. None uses all tables.
    """
    if only is not None:
        data = {name: table for name, table in data.items() if name in only}
    variables = sorted(name for name in environment if name.startswith(_prefixes(only)))
    links = tuple(name for name in variables if is_service_link(name, environment[name]))
    known = known_variables(data)
    merged, overrides, problems = copy.deepcopy(dict(data)), {}, []
    for name in variables:
        match known.get(name, []):
            case [(path, annotation)]:
                overrides[path] = name
                _put(merged, path, _parse(environment[name], annotation))
            case [_, _, *_] as several:
                problems.append(_ambiguous_variable(name, data, [path for path, _ in several]))
            case _ if name not in links:
                problems.append(_unknown_variable(name, known))
    for option in options:
        overrides[option.table, option.key] = option.name
        _put(merged, (option.table, option.key), option.value)
    return Merged(merged, overrides, tuple(problems), links)


def known_variables(data: Mapping[str, Any]) -> dict[str, list[tuple[KeyPath, object]]]:
    """Every variable that can override a key of this file, with that key and its type. It has two if two cameras fit.

    A camera's variables have its name in capitals, with `-` as `_`.
    """
    known: dict[str, list[tuple[KeyPath, object]]] = {}
    cameras = data.get("camera")
    words = [_camera_word(camera) for camera in cameras] if isinstance(cameras, list) else []
    tables: list[tuple[type[BaseModel], str, KeyPath]] = [
        *((model, f"{PREFIX}{table.upper()}__", (table,)) for table, model in TABLES.items()),
        *((CameraTable, f"{PREFIX}CAMERA__{word}__", ("camera", index)) for index, word in enumerate(words) if word),
    ]
    for model, prefix, table in tables:
        for name, (path, annotation) in _variables_of(model, prefix, table):
            if path[0] != "camera" or path[2:] != ("name",):
                known.setdefault(name, []).append((path, annotation))
    return known


def _prefixes(only: Collection[str] | None) -> tuple[str, ...]:
    return (PREFIX,) if only is None else tuple(f"{PREFIX}{table.upper()}__" for table in only)


def _unknown_variable(name: str, known: Mapping[str, object]) -> Problem:
    if (renamed := _renamed_variable(name)) is not None:
        return Problem("environment", None, None, redact_url(name), "was renamed", f"use `{renamed}`")
    nearest = suggest(name.removeprefix(PREFIX), [other.removeprefix(PREFIX) for other in known])
    hint = nearest.replace("`", f"`{PREFIX}", 1) or f"the form is {PREFIX}TABLE__KEY"
    return Problem("environment", None, None, redact_url(name), "names no key of the config", hint)


def _ambiguous_variable(name: str, data: Mapping[str, Any], paths: Iterable[KeyPath]) -> Problem:
    names = sorted({data["camera"][path[1]]["name"] for path in paths})
    shown = ", " + " and ".join(names) if all(map(is_camera_name, names)) else ""
    hint = "rename one of the cameras, or set the key in the file"
    return Problem("environment", None, None, redact_url(name), f"fits two cameras{shown}", hint)


def _renamed_variable(name: str) -> str | None:
    table, *parts = name.removeprefix(PREFIX).split("__")
    camera, parts = (parts[:1], parts[1:]) if table == "CAMERA" else ([], parts)
    renamed = new_name(".".join([table, *parts]).lower())
    if renamed is None:
        return None
    first, *others = renamed.upper().split(".")
    if table == "CAMERA" and first != "CAMERA":  # a key of `[stream]`, which a camera's `stream` has too
        first, others = "CAMERA", [first, *others]
    return PREFIX + "__".join([first, *camera, *others])


def _camera_word(camera: object) -> str:
    name = camera.get("name") if isinstance(camera, dict) else None
    return name.upper().replace("-", "_") if isinstance(name, str) else ""


def _variables_of(model: type[BaseModel], prefix: str, path: KeyPath) -> Iterator[tuple[str, tuple[KeyPath, object]]]:
    for key, field in model.model_fields.items():
        inner = sub_table(model, key)
        if inner is not None:
            yield from _variables_of(inner, f"{prefix}{key.upper()}__", (*path, key))
        else:
            yield f"{prefix}{key.upper()}", ((*path, key), field.annotation)


def _put(data: Any, path: KeyPath, value: object) -> None:
    # Where the file has something other than a table, nothing is set: the validate step reports that.
    for part in path[:-1]:
        data = data[part] if isinstance(part, int) else data.setdefault(part, {})
        if not isinstance(data, dict | list):
            return
    if isinstance(data, dict):
        data[path[-1]] = value


def _parse(text: str, annotation: object) -> object:
    # A key that takes free text gets the text. Any other key gets the text parsed as TOML, or the text itself if it is
    # not TOML, such as a choice.
    if _takes_text(annotation) or "\n" in text:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _takes_text(annotation: object) -> bool:
    if get_origin(annotation) is Annotated:
        return _takes_text(get_args(annotation)[0])
    parts = get_args(annotation)
    if NoneType in parts:
        return any(_takes_text(part) for part in parts if part is not NoneType)
    return annotation in (str, SecretStr)
