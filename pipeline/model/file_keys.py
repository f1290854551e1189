"""How the files of a family of networks name the weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from torch import Tensor


@dataclass(frozen=True, slots=True)
class FileKeys:
    """The names in LingBot-Map's files, and the base class of others.

    Attributes:
        heads: prefixes of the heads' keys in a full checkpoint, and the output that needs each head, for messages.
            Heads that the network does not have are skipped.
        unused: keys that inference does not need, skipped if a file has them.
    """

    heads: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType(
            {"camera_head.": "'pose'", "depth_head.": "'depth'", "point_head.": "'points'"}
        )
    )
    unused: frozenset[str] = frozenset()

    def key(self, name: str) -> str:
        """The key in a file of the network's weight `name`."""
        return name

    def cleaned(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """A file's tensors without what only its writer added: prefixes, and axes of size 1."""
        return tensors


LINGBOT_MAP_KEYS = FileKeys()
