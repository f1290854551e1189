"""Compares two instances of a dataclass field by field, to find the settings that changed since a file was written."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """A field with two different values.

    Attributes:
        field: dotted path of the field, such as `stream.window`.
        was: the old value.
        now: the new value.
    """

    field: str
    was: object
    now: object

    def __str__(self) -> str:
        return f"{self.field} {self.change}"

    @property
    def change(self) -> str:
        """The two values as text: `was 8, is 16`."""
        return f"was {_shown(self.was)}, is {_shown(self.now)}"


def differences(was: object, now: object, name: str = "") -> Iterator[Difference]:
    """Yield each field that differs, in the order of the fields of `now`.

    Args:
        was: the old value.
        now: the new value, of the same dataclass.
        name: dotted path of the value itself, which is put before the names of its fields.
    """
    if is_dataclass(was) and is_dataclass(now):
        for field in fields(now):
            inner = f"{name}.{field.name}" if name else field.name
            yield from differences(getattr(was, field.name), getattr(now, field.name), inner)
    elif was != now:
        yield Difference(name, was, now)


def _shown(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
