"""The aggregator: patch embedding, special tokens, and pairs of a frame block and a global block. Composition only."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..config import MixerName, NetworkConfig
from .attention import EPS, Attention, DeltaMixer, FrameMixer, GlobalMixer, MemoryStep, Mixer
from .backbones import build_patch_embed
from .blocks import Block
from .delta_attention import KimiDeltaAttention
from .delta_state import streaming_config
from .rope import Rotation, SpatialPart, rotation_2d, rotation_3d, spatial_part

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
KEPT_GRIDS = 8
"""Grids whose rotations are kept: cameras of more sizes than this are recomputed each step."""


@dataclass(frozen=True, slots=True)
class FrameNumbers:
    """Where the F frames of a step stand in their streams.

    Attributes:
        times: frames committed to the stream before each frame; any size.
        first: whether each frame is its stream's very first.
        scale: whether each frame is one of its stream's first `scale_frames`.
    """

    times: tuple[int, ...]
    first: tuple[bool, ...]
    scale: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class LayerOutput:
    """What one pair of blocks gave: tokens float32 [F, P, C] after the frame block and after the global block.

    Without blocks, the patch embedding's tokens and None.
    """

    layer: int
    frame: Tensor
    across: Tensor | None

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """What is published side by side."""
        return (self.frame,) if self.across is None else (self.frame, self.across)


@dataclass(frozen=True, slots=True)
class GridTables:
    """Rotations of frames of one grid of patches.

    Attributes:
        within: within a frame.
        spatial: the part of the rotation across frames that does not depend on time; None where there is no such.
    """

    within: Rotation
    spatial: SpatialPart | None


class Aggregator(nn.Module):
    """The network. It holds weights only: what a stream remembers is handed to each step.

    Args:
        network: its shape.
        dtype: number format of linear layers and convolutions; all else is float32.

    Raises:
        ValueError: the shape is impossible.
    """

    def __init__(self, network: NetworkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        if network.channels % network.heads:
            raise ValueError(f"channels are a multiple of heads, got {network.channels} and {network.heads}")
        self.network = network
        channels = network.channels
        self.patch_embed = build_patch_embed(network, dtype)
        self.camera_token = nn.Parameter(torch.zeros(1, 2, 1, channels))
        self.register_token = nn.Parameter(torch.zeros(1, 2, network.register_tokens, channels))
        self.scale_token = nn.Parameter(torch.zeros(1, 2, 1, channels))
        self.frame_blocks = nn.ModuleList(_block(network, "attention", dtype) for _ in range(network.depth))
        self.global_blocks = nn.ModuleList(_block(network, mixer, dtype) for mixer in network.global_mixers)
        # Plain constants, so real tensors even where the parameters are made on the meta device.
        self.register_buffer("mean", torch.tensor(MEAN, device="cpu").view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD, device="cpu").view(3, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor
        self._tables: dict[tuple[int, int], GridTables] = {}

    def forward(
        self, images: Tensor, numbers: FrameNumbers, memory: MemoryStep, layers: tuple[int, ...]
    ) -> tuple[LayerOutput, ...]:
        """Run a step.

        Args:
            images: float32 [F, 3, h, w], RGB in [0, 1]; h and w multiples of the patch size.
            numbers: where the frames stand in their streams.
            memory: one step of their streams' memory; each layer up to the last wanted one appends to it and attends.
            layers: pairs of blocks whose output is wanted, ascending. Later pairs do not run.
        """
        rows, columns = (side // self.network.patch_size for side in images.shape[2:])
        tables = self.grid_tables(rows, columns)
        within, across = FrameMixer(tables.within), self._rotation_across(tables, numbers)
        mixers = self._global_mixers(across, memory)
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
        """S: camera, registers, scale, first in each frame, in this order."""
        return self.network.register_tokens + 2

    @property
    def head_dim(self) -> int:
        """D."""
        return self.network.channels // self.network.heads

    def special_tokens_of(self, later: Tensor, after_scale: Tensor) -> Tensor:
        """Special tokens [F, S, C] by what the frames are not, int64 [F]: the first one, or one of the scale frames."""
        parts = (self.camera_token[0, later], self.register_token[0, later], self.scale_token[0, after_scale])
        return torch.cat(parts, dim=1)

    def _global_mixers(self, across: Rotation, memory: MemoryStep) -> list[Mixer]:
        network = self.network
        return [
            GlobalMixer(across, memory, index) if kind == "attention" else DeltaMixer(memory, index)
            for kind, index in zip(network.global_mixers, network.memory_indices, strict=True)
        ]

    def _special_tokens(self, numbers: FrameNumbers) -> Tensor:
        slots = torch.tensor((numbers.first, numbers.scale)).logical_not().long()
        return self.special_tokens_of(*slots.to(self.mean.device, non_blocking=True))

    def _rotation_across(self, tables: GridTables, numbers: FrameNumbers) -> Rotation:
        if tables.spatial is None:
            return tables.within
        times = torch.tensor(numbers.times, dtype=torch.float64).to(self.mean.device, non_blocking=True)
        return rotation_3d(times, tables.spatial, self.head_dim)

    def grid_tables(self, rows: int, columns: int) -> GridTables:
        """Rotations of frames of so many patches, made once for each grid."""
        kept = self._tables.get((rows, columns))
        if kept is None:
            while len(self._tables) >= KEPT_GRIDS:
                self._tables.pop(next(iter(self._tables)))
            kept = self._tables[rows, columns] = self._make_tables(rows, columns)
        return kept

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
