"""Models that can be asked for by name: whole ones, and DINOv2's for the patch embedding. Imports no torch.

A preset only fills in a configuration: every value can be overridden there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..config import NetworkConfig, PatchEmbed, StreamConfig


@dataclass(frozen=True, slots=True)
class Preset:
    """A named model.

    Attributes:
        name: as configured and published.
        network: its shape.
        image_width: width in pixels that pictures are fitted to.
        stream: what a stream remembers by default.
        layers: layer pairs that are published by default.
    """

    name: str
    network: NetworkConfig
    image_width: int
    stream: StreamConfig
    layers: tuple[int, ...]


TINY = Preset(
    name="tiny",
    network=NetworkConfig(channels=256, heads=4, depth=4, patch_embed="conv"),
    image_width=224,
    stream=StreamConfig(scale_frames=4, window=8, history_frames=64),
    layers=(0, 1, 2, 3),
)
"""Small enough for two CPU cores; no released weights exist for it."""

LINGBOT_MAP = Preset(
    name="lingbot-map",
    network=NetworkConfig(),
    image_width=518,
    # Trained on at most 320 frames: the temporal positions of later ones are new to it.
    stream=StreamConfig(epoch_frames=320),
    layers=(4, 11, 17, 23),
)
"""The shape of the released LingBot-Map checkpoints (arXiv 2604.14141)."""

PRESETS = MappingProxyType({preset.name: preset for preset in (TINY, LINGBOT_MAP)})
"""All presets by name; read-only."""


@dataclass(frozen=True, slots=True)
class DinoShape:
    """Size of a DINOv2 model."""

    channels: int
    heads: int
    depth: int


DINO_PATCH_SIZE = 14
DINO_SHAPES: Mapping[PatchEmbed, DinoShape] = MappingProxyType(
    {
        "dinov2_vits14_reg": DinoShape(channels=384, heads=6, depth=12),
        "dinov2_vitb14_reg": DinoShape(channels=768, heads=12, depth=12),
        "dinov2_vitl14_reg": DinoShape(channels=1024, heads=16, depth=24),
    }
)
"""The DINOv2 models with registers that can be a patch embedding; read-only."""
