"""The `dinov2_*` backbones: DINOv2 with registers (arXiv 2304.07193, 2309.16588)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..config import NetworkConfig
from .attention import Attention, mix_within_frame
from .blocks import Block
from .conv_patches import ConvPatches
from .patch_embed import TransformerPatches

EPS = 1e-6
GRID = 37
"""Number of rows, and of columns, of the learnt position embedding."""
REGISTERS = 4
MLP_RATIO = 4
MASK = "mask_token"
"""The token for masked patches, used in training only."""
CACHED_GRIDS = 8
"""Maximum number of grids whose resampled position embedding is cached. With more image sizes, the embedding is
recomputed at each step."""


class DinoPatches(TransformerPatches):
    """DINOv2 with registers; returns the patch tokens after the final norm.

    Args:
        channels: C, the number of channels.
        heads: number of attention heads.
        depth: number of blocks.
        patch_size: side length of a patch in pixels.
        dtype: number format of linear layers and convolutions.
    """

    def __init__(self, channels: int, heads: int, depth: int, patch_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, channels))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + GRID**2, channels))
        self.register_tokens = nn.Parameter(torch.zeros(1, REGISTERS, channels))
        self.patch_embed = ConvPatches(channels, patch_size, dtype)
        self.blocks = nn.ModuleList(_block(channels, heads, dtype) for _ in range(depth))
        self.norm = nn.LayerNorm(channels, eps=EPS)
        self.prefix_tokens = 1 + REGISTERS
        self._patch_size = patch_size
        self._positions: dict[tuple[int, int], Tensor] = {}

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.tokens(images)
        for block in self.blocks:
            tokens = block(tokens, mix_within_frame)
        out: Tensor = self.norm(tokens[:, self.prefix_tokens :])
        return out

    def tokens(self, images: Tensor) -> Tensor:
        """See `TransformerPatches`: the cls token, the registers and the patches, float32 [F, 5 + rows * columns, C].

        The position embedding has been added to the cls token and to the patches.
        """
        frames = images.shape[0]
        rows, columns = (side // self._patch_size for side in images.shape[2:])
        patches = self.patch_embed(images) + self.patch_positions(rows, columns)
        first = (self.cls_token + self.pos_embed[:, :1]).expand(frames, -1, -1)
        return torch.cat((first, self.register_tokens.expand(frames, -1, -1), patches), dim=1)

    def grid_constants(self, rows: int, columns: int) -> tuple[Tensor, ...]:
        """See `PatchEmbedding`. The only such tensor is the resampled position embedding."""
        return (self.patch_positions(rows, columns),)

    def patch_positions(self, rows: int, columns: int) -> Tensor:
        """The position embedding resampled to a grid of patches, float32 [1, rows * columns, C]; cached per grid."""
        cached = self._positions.get((rows, columns))
        if cached is None:
            while len(self._positions) >= CACHED_GRIDS:
                self._positions.pop(next(iter(self._positions)))
            cached = self._positions[rows, columns] = self._resample(rows, columns)
        return cached

    def _resample(self, rows: int, columns: int) -> Tensor:
        learnt = self.pos_embed[:, 1:].reshape(1, GRID, GRID, -1).permute(0, 3, 1, 2)
        resized = functional.interpolate(learnt, size=(rows, columns), mode="bicubic", antialias=True)
        return resized.flatten(2).transpose(1, 2)  # [1, rows * columns, C]


def _block(channels: int, heads: int, dtype: torch.dtype) -> Block:
    attention = Attention(channels, heads, qk_norm=False, dtype=dtype)
    return Block(attention, channels, MLP_RATIO * channels, eps=EPS, dtype=dtype)


@dataclass(frozen=True, slots=True)
class Dinov2Builder:
    """Builds one size of DINOv2 and reads its released files."""

    channels: int
    heads: int
    depth: int

    def build(self, network: NetworkConfig, dtype: torch.dtype) -> DinoPatches:
        """See `BackboneBuilder`."""
        return DinoPatches(self.channels, self.heads, self.depth, network.patch_size, dtype)

    def from_release(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `BackboneBuilder`. The released names are those of the module's parameters."""
        return {name: value for name, value in tensors.items() if name != MASK}

    def explain_mismatch(self, tensors: Mapping[str, Tensor]) -> str:
        """See `BackboneBuilder`."""
        if any(name.startswith(("embeddings.", "encoder.layer.")) for name in tensors):
            return "the file looks like a conversion for another library: use the file that DINOv2's authors released"
        if "cls_token" in tensors and "register_tokens" not in tensors:
            return "the file looks like DINOv2 without registers: the file with registers has reg4 in its name"
        positions = tensors.get("pos_embed")
        if positions is not None and positions.ndim == 3 and positions.shape[1] != 1 + GRID**2:
            return f"the file has {positions.shape[1] - 1} positions: a grid of {GRID} x {GRID} is required"
        return ""
