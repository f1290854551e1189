"""What the environment says about the config: `RETINAD_<TABLE>__<KEY>` overrides, and credentials.

The mapping is handed in by `config.py`, one of the three files that read the process's environment. A `RETINAD_`
variable that names no key is an error: a misspelt override would otherwise be ignored in silence.
"""

import copy
import os
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, SecretStr

from .errors import KeyPath, suggest
from .problems import Report, sub_table
from .tables import CameraTable, ModelTable, PublishTable, ServiceTable, StreamTable

PREFIX = "RETINAD_"
CREDENTIAL = "credential:"
TABLES: Mapping[str, type[BaseModel]] = {
    "service": ServiceTable,
    "publish": PublishTable,
    "model": ModelTable,
    "stream": StreamTable,
}
"""The tables that stand once in a file; beside them there is only `[[camera]]`."""


def read_credential(text: str, environment: Mapping[str, str]) -> str:
    """What `credential:NAME` stands for: the text of systemd's credential NAME.

    Raises:
        ValueError: what is wrong, and what to do.
    """
    path = find_credential(text, environment)
    try:
        value = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ValueError(f"the credential cannot be read: {reason}") from None
    if not value or not value.isprintable():
        raise ValueError("the credential must hold one line of text")
    return value


def find_credential(text: str, environment: Mapping[str, str]) -> Path:
    """The file of systemd's credential NAME, for `credential:NAME`.

    Raises:
        ValueError: what is wrong, and what to do.
    """
    name = text.removeprefix(CREDENTIAL)
    if not name or "/" in name or name.startswith(".") or not name.isprintable():
        raise ValueError("expected credential:NAME, where NAME is a plain file name")
    directory = environment.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise ValueError(f"no credentials were passed: the unit needs LoadCredential={name}:/path/to/the/file")
    path = Path(directory, name)
    if not os.path.isfile(path):  # Path.is_file raises where a folder may not be entered, or a name is too long
        raise ValueError(f"there is no credential of this name: the unit needs LoadCredential={name}:/path/to/the/file")
    return path


def apply_overrides(
    data: dict[str, Any], environment: Mapping[str, str]
) -> tuple[dict[str, Any], dict[KeyPath, str], list[str]]:
    """A copy of the file's data with the environment's overrides.

    Returns:
        The data, the variable by the key that it overrides, and the `RETINAD_` variables that name no key.
    """
    known = known_variables(data)
    data = copy.deepcopy(data)
    names = sorted(name for name in environment if name.startswith(PREFIX))
    used = {known[name][0]: name for name in names if name in known}
    for path, name in used.items():
        _put(data, path, _parse(environment[name], known[name][1]))
    return data, used, [name for name in names if name not in known]


def known_variables(data: Mapping[str, Any]) -> dict[str, tuple[KeyPath, object]]:
    """Every variable that overrides a key of this file, with the key and the type it takes.

    A camera's variables have its name in capitals, `-` as `_`; names that become the same have no variables.
    """
    known: dict[str, tuple[KeyPath, object]] = {}
    for table, model in TABLES.items():
        known.update(_variables_of(model, f"{PREFIX}{table.upper()}__", (table,)))
    cameras = data.get("camera")
    words = [_camera_word(camera) for camera in cameras] if isinstance(cameras, list) else []
    counts = Counter(words)
    for index, word in enumerate(words):
        if word and counts[word] == 1:
            known.update(_variables_of(CameraTable, f"{PREFIX}CAMERA__{word}__", ("camera", index)))
            known.pop(f"{PREFIX}CAMERA__{word}__NAME")
    return known


def report_unknown(names: list[str], data: Mapping[str, Any], report: Report) -> None:
    """Note the `RETINAD_` variables that name no key."""
    known = list(known_variables(data))
    for name in names:
        nearest = suggest(name.removeprefix(PREFIX), [other.removeprefix(PREFIX) for other in known])
        hint = nearest.replace("`", f"`{PREFIX}", 1) or f"the form is {PREFIX}TABLE__KEY"
        report.add_variable(name, "names no key of the config", hint)


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
    """Set a value in nested tables; where the file has something else than a table, that is left to be refused."""
    for part in path[:-1]:
        data = data[part] if isinstance(part, int) else data.setdefault(part, {})
        if not isinstance(data, dict | list):
            return
    if isinstance(data, dict):
        data[path[-1]] = value


def _parse(text: str, annotation: object) -> object:
    """A variable's text as the key's type: as it is where the key takes text, else as TOML, else as it is."""
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
