"""From pictures to patch tokens: a convolution, or DINOv2 with registers (arXiv 2304.07193, 2309.16588)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..config import NetworkConfig
from .attention import Attention, mix_alone
from .blocks import Block
from .presets import DINO_SHAPES, DinoShape

DINO_EPS = 1e-6
DINO_GRID = 37
DINO_REGISTERS = 4
DINO_MLP_RATIO = 4
KEPT_GRIDS = 8
"""Grids whose resampled position embedding is kept: cameras of more sizes than this are recomputed each step."""


class ConvPatches(nn.Module):
    """One convolution, a patch wide and a patch apart."""

    def __init__(self, channels: int, patch_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, channels, patch_size, stride=patch_size, dtype=dtype)

    def forward(self, images: Tensor) -> Tensor:
        """Normalised pictures [F, 3, h, w] to patch tokens float32 [F, rows * columns, C], row by row."""
        # By default cuDNN rounds a float32 convolution's inputs to TF32, which costs 1e-3.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            grid: Tensor = self.proj(images.to(self.proj.weight.dtype))
        return grid.flatten(2).transpose(1, 2).float()


class DinoPatches(nn.Module):
    """DINOv2 with registers; its patch tokens after the final norm."""

    def __init__(self, shape: DinoShape, patch_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        channels = shape.channels
        self.cls_token = nn.Parameter(torch.zeros(1, 1, channels))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + DINO_GRID**2, channels))
        self.register_tokens = nn.Parameter(torch.zeros(1, DINO_REGISTERS, channels))
        self.patch_embed = ConvPatches(channels, patch_size, dtype)
        self.blocks = nn.ModuleList(_block(shape, dtype) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(channels, eps=DINO_EPS)
        self._patch_size = patch_size
        self._positions: dict[tuple[int, int], Tensor] = {}

    def forward(self, images: Tensor) -> Tensor:
        """Normalised pictures [F, 3, h, w] to patch tokens float32 [F, rows * columns, C], row by row."""
        tokens = self.tokens(images)
        for block in self.blocks:
            tokens = block(tokens, mix_alone)
        out: Tensor = self.norm(tokens[:, 1 + DINO_REGISTERS :])
        return out

    def tokens(self, images: Tensor) -> Tensor:
        """What the blocks are given: cls, registers and patches with their positions, float32 [F, 5 + N, C]."""
        frames = images.shape[0]
        rows, columns = (side // self._patch_size for side in images.shape[2:])
        patches = self.patch_embed(images) + self.patch_positions(rows, columns)
        first = (self.cls_token + self.pos_embed[:, :1]).expand(frames, -1, -1)
        return torch.cat((first, self.register_tokens.expand(frames, -1, -1), patches), dim=1)

    def patch_positions(self, rows: int, columns: int) -> Tensor:
        """The learnt positions of a grid of patches, resampled once for each grid: float32 [1, rows * columns, C]."""
        kept = self._positions.get((rows, columns))
        if kept is None:
            while len(self._positions) >= KEPT_GRIDS:
                self._positions.pop(next(iter(self._positions)))
            kept = self._positions[rows, columns] = self._resampled(rows, columns)
        return kept

    def _resampled(self, rows: int, columns: int) -> Tensor:
        learnt = self.pos_embed[:, 1:].reshape(1, DINO_GRID, DINO_GRID, -1).permute(0, 3, 1, 2)
        resized = functional.interpolate(learnt, size=(rows, columns), mode="bicubic", antialias=True)
        return resized.flatten(2).transpose(1, 2)  # [1, rows * columns, C]


def _block(shape: DinoShape, dtype: torch.dtype) -> Block:
    attention = Attention(shape.channels, shape.heads, qk_norm=False, dtype=dtype)
    return Block(attention, shape.channels, DINO_MLP_RATIO * shape.channels, eps=DINO_EPS, dtype=dtype)


def make_patch_embed(network: NetworkConfig, dtype: torch.dtype) -> ConvPatches | DinoPatches:
    """The patch embedding that the network names.

    Raises:
        ValueError: the network's channels are not those of the DINOv2 model.
    """
    if network.patch_embed == "conv":
        return ConvPatches(network.channels, network.patch_size, dtype)
    shape = DINO_SHAPES[network.patch_embed]
    if shape.channels != network.channels:
        raise ValueError(f"{network.patch_embed} has {shape.channels} channels, the network has {network.channels}")
    return DinoPatches(shape, network.patch_size, dtype)
