"""Base types of the source registry: a kind of source, and a parsed source of that kind."""

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
    """A parsed source. Holds text and numbers only; nothing is open. Subclasses are frozen dataclasses."""

    __slots__ = ()

    @property
    def is_live(self) -> bool:
        """Whether the text alone identifies a camera, which never ends."""
        return False

    @property
    def frame_size(self) -> "Size | None":
        """Width and height of every frame in pixels, if the text alone determines them, else None."""
        return None

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and TCP port at which the source is opened; None if it has none."""
        return None

    def check(self) -> None:  # noqa: B027  # most kinds have nothing to check
        """Check what can be checked without opening the source, such as whether a file exists.

        Raises:
            SourceError: the source cannot be read at the moment; the service would keep retrying it.
        """

    @abstractmethod
    def load(self, config: "CameraConfig") -> "Callable[[], Reader]":
        """Import the reader, and return a function that opens the source, any number of times.

        Raises:
            SourceError: the source cannot be read as written. The returned function raises it if the source cannot be
                opened.
        """


@dataclass(frozen=True, slots=True)
class SourceKind:
    """One kind of source: an entry of the registry.

    Attributes:
        name: noun phrase for help and errors, with an article.
        forms: examples of such a source, the most common form first.
        parse: parses a text. Returns None for a text of another kind; raises `SourceError`, without a secret in its
            message, for an invalid text of this kind.
        schemes: prefixes of this kind, including punctuation: `rtsp://`, `synthetic:`.
        ends: whether such a source has an end, so that `extract` accepts it.
    """

    name: str
    forms: tuple[str, ...]
    parse: Callable[[str], SourceSpec | None]
    schemes: tuple[str, ...] = ()
    ends: bool = False


def unreadable(message: str) -> SourceError:
    """Make the error for a source text that cannot be read as written."""
    return SourceError(SourceFault.UNREADABLE, message)
