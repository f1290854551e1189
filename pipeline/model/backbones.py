"""The registry of backbones: the networks that turn an image into patch tokens. Imports no torch.

The config's `patch_embed` names an entry. Config checks, error texts and the loading of weights follow from the
registry. To add a backbone:

1. write one module beside this file with a `BackboneBuilder`: `conv_patches` is the smallest, `dinov2` has released
   weights;
2. add one `Backbone` per size to `BACKBONES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from ..config import NetworkConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .patch_embed import PatchEmbedding


class BackboneBuilder(Protocol):
    """Builds a backbone in PyTorch and reads its released weights."""

    def build(self, network: NetworkConfig, dtype: "torch.dtype") -> "PatchEmbedding":
        """Build the patch embedding without weights; linear layers and convolutions are in `dtype`."""

    def from_release(self, tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
        """The tensors of a released file, renamed to the parameter names of the patch embedding."""

    def explain_mismatch(self, tensors: "Mapping[str, Tensor]") -> str:
        """A text for the error message that says what a file with the wrong tensors seems to be; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Release:
    """The weights that the authors of a backbone publish.

    Attributes:
        name: the backbone's name, for messages.
        marker: a key that distinguishes the released file from a checkpoint of a whole network: only the released file
            has this key at its top level.
        unused: keys that inference does not need; also skipped in checkpoints of whole networks.
    """

    name: str
    marker: str
    unused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A setting of the network that a backbone does not support.

    Attributes:
        field: the field of `NetworkConfig`.
        expected: the only value that the backbone supports.
        actual: the value that is set.
    """

    field: str
    expected: int
    actual: int


@dataclass(frozen=True, slots=True)
class Backbone:
    """One entry of the registry.

    Attributes:
        name: the value of `patch_embed`.
        load: imports the backbone's module and returns its builder.
        channels: the only supported number of channels; None for any.
        patch_size: the only supported patch size in pixels; None for any.
        release: the backbone's own released weights; None if there are none.
    """

    name: str
    load: Callable[[], BackboneBuilder]
    channels: int | None = None
    patch_size: int | None = None
    release: Release | None = None

    def mismatches(self, network: NetworkConfig) -> tuple[Mismatch, ...]:
        """The network settings that are incompatible with this backbone."""
        wanted = {"channels": self.channels, "patch_size": self.patch_size}
        actual = {"channels": network.channels, "patch_size": network.patch_size}
        return tuple(
            Mismatch(field, value, actual[field])
            for field, value in wanted.items()
            if value is not None and value != actual[field]
        )


def find_backbone(name: str) -> Backbone:
    """The registered backbone of this name.

    Raises:
        ValueError: no backbone has this name; the message lists the registered names.
    """
    if name not in BACKBONES:
        raise ValueError(f"unknown patch embedding {name!r}: expected one of {', '.join(BACKBONES)}")
    return BACKBONES[name]


def build_patch_embed(network: NetworkConfig, dtype: "torch.dtype") -> "PatchEmbedding":
    """Build the patch embedding that a network names, without weights.

    Raises:
        ValueError: no backbone has this name, or the network's number of channels or patch size is incompatible with
            the backbone.
    """
    backbone = find_backbone(network.patch_embed)
    for mismatch in backbone.mismatches(network):
        setting = mismatch.field.replace("_", " ")
        raise ValueError(f"{backbone.name} requires {setting} {mismatch.expected}, got {mismatch.actual}")
    return backbone.load().build(network, dtype)


def _load_conv() -> BackboneBuilder:
    from .conv_patches import ConvBuilder

    return ConvBuilder()


def _dinov2(name: str, channels: int, heads: int, depth: int) -> Backbone:
    def load() -> BackboneBuilder:
        from .dinov2 import Dinov2Builder

        return Dinov2Builder(channels, heads, depth)

    return Backbone(name, load, channels, patch_size=14, release=_DINOV2)


_DINOV2 = Release("DINOv2", marker="cls_token", unused=frozenset({"mask_token"}))

BACKBONES: Mapping[str, Backbone] = MappingProxyType(
    {
        backbone.name: backbone
        for backbone in (
            Backbone("conv", _load_conv),
            _dinov2("dinov2_vits14_reg", channels=384, heads=6, depth=12),
            _dinov2("dinov2_vitb14_reg", channels=768, heads=12, depth=12),
            _dinov2("dinov2_vitl14_reg", channels=1024, heads=16, depth=24),
        )
    }
)
"""All backbones by name; read-only."""
