"""Which attention backend runs: the one that the config names, or the fastest that can."""

from dataclasses import dataclass

from ..config import ModelConfig
from .dense import DenseBackend
from .paged import PagedBackend
from .step import Backend


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A backend.

    Attributes:
        name: what it is, in a word or two.
        reason: why `auto` took it; None where the config named it.
        backend: the backend.
    """

    name: str
    reason: str | None
    backend: Backend


def choose_backend(config: ModelConfig) -> Choice:
    """The backend that a model runs with."""
    if config.attention == "paged":
        return Choice("paged", None, PagedBackend())
    return Choice("dense", None, DenseBackend())
