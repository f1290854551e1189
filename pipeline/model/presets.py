"""The registry of presets: whole models by name. Imports no torch.

A preset only fills in defaults: the config can override each of them. Config checks and error texts follow from
`PRESETS`. To add a preset:

* of a known family, such as another size of LingBot-Map: add a `Preset` to `PRESETS`;
* of another family, which has special tokens or blocks of its own: write one module beside this file with a subclass of
  `network.Network` (see `lingbot_map`), and add a `Preset` whose `load_builder` imports it.

A `NetworkConfig` configures a family's network, and a `StreamConfig` its window: which frames keep all their tokens,
which keep only their special tokens, and after how many frames the cache is rebuilt. A rule that these settings cannot
express belongs in `cache.window`, which alone decides what a frame sees. Fused execution supports only the blocks of
`Aggregator`. HorizonStream has a network of its own, `horizon_stream`, of the same parts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..config import CameraHeadConfig, DenseHeadConfig, HorizonConfig, NetworkConfig, ResizeMode, StreamConfig

if TYPE_CHECKING:
    import torch

    from .network import Network

    NetworkBuilder = Callable[[NetworkConfig, torch.dtype], Network]


def _load_lingbot_map() -> "NetworkBuilder":
    from .lingbot_map import build_lingbot_map

    return build_lingbot_map


def _load_horizon_stream() -> "NetworkBuilder":
    from .horizon_stream import build_horizon_stream

    return build_horizon_stream


@dataclass(frozen=True, slots=True)
class Preset:
    """A named model.

    Attributes:
        name: the value of `preset`, also published with every record.
        network: the network's shape.
        image_width: width to which images are resized, in pixels.
        stream: default settings of the model's streams.
        layers: indices of the layer pairs that are published by default.
        resize: how images are resized by default.
        note: what users have to know before they use the released weights; None if nothing.
        load_builder: imports the module of the preset's family, and returns the function that builds the network.
    """

    name: str
    network: NetworkConfig
    image_width: int
    stream: StreamConfig
    layers: tuple[int, ...]
    resize: ResizeMode = ResizeMode.CROP
    note: str | None = None
    load_builder: "Callable[[], NetworkBuilder]" = _load_lingbot_map


TINY = Preset(
    name="tiny",
    network=NetworkConfig(
        channels=256,
        heads=4,
        depth=4,
        patch_embed="conv",
        camera_head=CameraHeadConfig(heads=8, blocks=2, rounds=2),
        dense_head=DenseHeadConfig(layers=(0, 1, 2, 3), features=32, channels=(32, 64, 64, 64)),
    ),
    image_width=224,
    stream=StreamConfig(scale_frames=4, window=8, history_frames=64),
    layers=(0, 1, 2, 3),
)
"""A model that is small enough for two CPU cores. It has no released weights."""

LINGBOT_MAP = Preset(
    name="lingbot-map",
    network=NetworkConfig(),
    image_width=518,
    # Trained on at most 320 frames: the network has never seen the temporal positions of later frames.
    stream=StreamConfig(epoch_frames=320),
    layers=(4, 11, 17, 23),
)
"""The shape of the released LingBot-Map checkpoints (arXiv 2604.14141)."""

HORIZON_STREAM = Preset(
    name="horizonstream",
    network=NetworkConfig(register_tokens=0, rope3d=False, horizon=HorizonConfig()),
    image_width=518,
    # The first step is one whole window. Older frames remain in the `kda` blocks, and positions in time repeat.
    stream=StreamConfig(scale_frames=10, window=10, history_frames=0),
    layers=(4, 11, 17, 23),
    resize=ResizeMode.FIT,
    note="the authors of HorizonStream state no licence for its weights: find out whether you may use them",
    load_builder=_load_horizon_stream,
)
"""The shape of the released HorizonStream checkpoint (arXiv 2605.23889)."""

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {preset.name: preset for preset in (TINY, LINGBOT_MAP, HORIZON_STREAM)}
)
"""All presets by name; read-only."""


def default_preset(device: str) -> Preset:
    """The preset that `auto` selects on a device."""
    return LINGBOT_MAP if device.startswith("cuda") else TINY


def builder_for(name: str) -> "NetworkBuilder":
    """The function that builds the networks of a preset's family; for a name without a preset, that of LingBot-Map."""
    preset = PRESETS.get(name)
    return _load_lingbot_map() if preset is None else preset.load_builder()
