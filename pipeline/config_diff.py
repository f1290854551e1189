"""Says in which fields two values of one dataclass differ, by the config's keys: why a file does not fit the config."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

_TABLES = re.compile(r"^(?:model\.)?(?:network|output)\.")
_NAMES = {
    "model.name": "model.preset",
    "model_name": "model.preset",
    "image_width": "model.image_width",
    "model.weights": "weights",
    "model.layers": "global blocks that run",
}
"""What a field is called that is no key of the config, or one of another name."""


def differences(there: object, here: object, name: str = "") -> Iterator[str]:
    """`stream.window was 8, is 16` for each field that differs, in the order of the fields of `here`."""
    if is_dataclass(there) and is_dataclass(here):
        for field in fields(here):
            inner = f"{name}.{field.name}" if name else field.name
            yield from differences(getattr(there, field.name), getattr(here, field.name), inner)
    elif there != here:
        yield f"{config_key(name)} was {_shown(there)}, is {_shown(here)}"


def config_key(field: str) -> str:
    """The key of the config that a field comes from: `model.pool` for `model.output.pool`, which is in no file."""
    key = field.replace("output.dtype", "output.output_dtype").replace("stream.retention.", "stream.")
    return _NAMES.get(key, _TABLES.sub("model.", key))


def _shown(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
