"""The aggregator, composed of a patch embedding, special tokens, and pairs of a frame block and a global block."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..config import MixerName, NetworkConfig
from .attention import EPS, Attention, CacheStep, DeltaMixer, FrameMixer, GlobalMixer, Mixer
from .backbones import build_patch_embed
from .blocks import Block
from .delta_attention import KimiDeltaAttention
from .delta_state import streaming_config
from .network import FrameNumbers, LayerOutput, Network
from .rope import Rotation, SpatialPart, rotation_2d, rotation_3d, spatial_part

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
CACHED_GRIDS = 8
"""Maximum number of grids whose rotations are cached. With more image sizes, rotations are recomputed at each step."""


@dataclass(frozen=True, slots=True)
class GridTables:
    """The rotations for all frames that have the same grid of patches.

    Attributes:
        within: rotation within a frame.
        spatial: the part of the rotation across frames that does not depend on time; None if the network has no
            3D positions.
    """

    within: Rotation
    spatial: SpatialPart | None


class Aggregator(Network):
    """The network of LingBot-Map.

    Args:
        network: the network's shape.
        dtype: number format of linear layers and convolutions; everything else is float32.

    Raises:
        ValueError: the shape is impossible.
    """

    def __init__(self, network: NetworkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        if network.channels % network.heads:
            raise ValueError(f"channels must be a multiple of heads, got {network.channels} and {network.heads}")
        self.network = network
        channels = network.channels
        self.patch_embed = build_patch_embed(network, dtype)
        self.camera_token = nn.Parameter(torch.zeros(1, 2, 1, channels))
        self.register_token = nn.Parameter(torch.zeros(1, 2, network.register_tokens, channels))
        self.scale_token = nn.Parameter(torch.zeros(1, 2, 1, channels))
        self.frame_blocks = nn.ModuleList(_block(network, "attention", dtype) for _ in range(network.depth))
        self.global_blocks = nn.ModuleList(_block(network, mixer, dtype) for mixer in network.global_mixers)
        # Constants: real tensors even if the parameters are on the meta device.
        self.register_buffer("mean", torch.tensor(MEAN, device="cpu").view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD, device="cpu").view(3, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor
        self._tables: dict[tuple[int, int], GridTables] = {}

    def forward(
        self, images: Tensor, numbers: FrameNumbers, step: CacheStep, layers: tuple[int, ...]
    ) -> tuple[LayerOutput, ...]:
        """See `Network`."""
        rows, columns = (side // self.network.patch_size for side in images.shape[2:])
        tables = self.grid_tables(rows, columns)
        within, across = FrameMixer(tables.within), self._rotation_across(tables, numbers)
        mixers = self._global_mixers(across, step)
        tokens = torch.cat((self._special_tokens(numbers), self.patch_embed((images - self.mean) / self.std)), dim=1)
        outputs: list[LayerOutput] = []
        for layer in range(layers[-1] + 1):
            frame = self.frame_blocks[layer](tokens, within)
            tokens = self.global_blocks[layer](frame, mixers[layer])
            if layer in layers:
                outputs.append(LayerOutput(layer, frame, tokens))
        return tuple(outputs)

    @property
    def special_tokens(self) -> int:
        """S, the number of special tokens: camera, registers and scale, in this order at the start of each frame."""
        return self.network.register_tokens + 2

    @property
    def head_dim(self) -> int:
        """D, the number of channels per head."""
        return self.network.channels // self.network.heads

    def special_tokens_of(self, later: Tensor, after_scale: Tensor) -> Tensor:
        """The special tokens [F, S, C] of F frames.

        Args:
            later: int64 [F], 1 for frames that are not their stream's first.
            after_scale: int64 [F], 1 for frames that are not scale frames.
        """
        parts = (self.camera_token[0, later], self.register_token[0, later], self.scale_token[0, after_scale])
        return torch.cat(parts, dim=1)

    def _global_mixers(self, across: Rotation, step: CacheStep) -> list[Mixer]:
        network = self.network
        return [
            GlobalMixer(across, step, index) if kind == "attention" else DeltaMixer(step, index)
            for kind, index in zip(network.global_mixers, network.memory_indices, strict=True)
        ]

    def _special_tokens(self, numbers: FrameNumbers) -> Tensor:
        flags = torch.tensor((numbers.first, numbers.scale)).logical_not().long()
        return self.special_tokens_of(*flags.to(self.mean.device, non_blocking=True))

    def _rotation_across(self, tables: GridTables, numbers: FrameNumbers) -> Rotation:
        if tables.spatial is None:
            return tables.within
        times = torch.tensor(numbers.times, dtype=torch.float64).to(self.mean.device, non_blocking=True)
        return rotation_3d(times, tables.spatial, self.head_dim)

    def grid_tables(self, rows: int, columns: int) -> GridTables:
        """The rotations for a grid of patches. They are cached per grid."""
        cached = self._tables.get((rows, columns))
        if cached is None:
            while len(self._tables) >= CACHED_GRIDS:
                self._tables.pop(next(iter(self._tables)))
            cached = self._tables[rows, columns] = self._make_tables(rows, columns)
        return cached

    def _make_tables(self, rows: int, columns: int) -> GridTables:
        shape = (rows, columns, self.special_tokens, self.head_dim, self.mean.device)
        return GridTables(rotation_2d(*shape), spatial_part(*shape) if self.network.rope3d else None)


def _block(network: NetworkConfig, mixer: MixerName, dtype: torch.dtype) -> Block:
    channels, hidden = network.channels, int(network.channels * network.mlp_ratio)
    attn: nn.Module = (
        Attention(channels, network.heads, qk_norm=True, dtype=dtype)
        if mixer == "attention"
        else KimiDeltaAttention(streaming_config(channels, network.heads), dtype)
    )
    return Block(attn, channels, hidden, eps=EPS, dtype=dtype)
