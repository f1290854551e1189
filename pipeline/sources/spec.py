"""Base types of the source registry: a kind of source, and a source of that kind as the config writes it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import SourceError, SourceFault

if TYPE_CHECKING:  # these import numpy, which parsing does not need
    from ..config import CameraConfig
    from ..frames import Size
    from .reader import Reader


class SourceSpec(ABC):
    """A parsed source: text and numbers only, nothing is open. Subclasses are frozen dataclasses."""

    __slots__ = ()

    @property
    def is_live(self) -> bool:
        """Whether the text alone says that this is a camera, which never ends."""
        return False

    @property
    def frame_size(self) -> "Size | None":
        """Width and height of every frame in pixels, where the text alone says so."""
        return None

    def check(self) -> None:  # noqa: B027  # most kinds have nothing to check
        """Check what can be checked without opening the source, such as whether a file exists.

        Raises:
            SourceError: the source cannot be read as things are; the service keeps trying such a source.
        """

    @abstractmethod
    def load(self, config: "CameraConfig") -> "Callable[[], Reader]":
        """Import what reads this source, and return a function that opens it, any number of times.

        Raises:
            SourceError: the source cannot be read as written. The returned function raises it too.
        """


@dataclass(frozen=True, slots=True)
class SourceKind:
    """One kind of source: an entry of the registry.

    Attributes:
        name: noun phrase for help and errors.
        forms: ways to write such a source, the most common one first.
        schemes: prefixes that belong to this kind, punctuation included: `rtsp://`, `synthetic:`.
        parse: reads a source's text; returns None where the text is of another kind, and raises `SourceError` where it
            is of this kind and wrong. Its messages hold no secret.
        ends: whether `extract` takes such a source, since it has an end.
    """

    name: str
    forms: tuple[str, ...]
    parse: Callable[[str], SourceSpec | None]
    schemes: tuple[str, ...] = ()
    ends: bool = False


def unreadable(message: str) -> SourceError:
    """The error of a source that cannot be read as written."""
    return SourceError(SourceFault.UNREADABLE, message)
