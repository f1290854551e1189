"""Says in which fields two values of one dataclass differ: why a file does not fit what is configured."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass


def differences(there: object, here: object, name: str = "") -> Iterator[str]:
    """`stream.window was 8, is 16` for each field that differs, in the order of the fields of `here`."""
    if is_dataclass(there) and is_dataclass(here):
        for field in fields(here):
            inner = f"{name}.{field.name}" if name else field.name
            yield from differences(getattr(there, field.name), getattr(here, field.name), inner)
    elif there != here:
        yield f"{name} was {there}, is {here}"
