"""The `conv` backbone: a single convolution."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..config import NetworkConfig
from .patch_embed import PatchEmbedding


class ConvPatches(PatchEmbedding):
    """One convolution, whose kernel size and stride both equal the patch size."""

    def __init__(self, channels: int, patch_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, channels, patch_size, stride=patch_size, dtype=dtype)

    def forward(self, images: Tensor) -> Tensor:
        # By default cuDNN rounds the inputs of a float32 convolution to TF32, which causes errors of 1e-3.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            grid: Tensor = self.proj(images.to(self.proj.weight.dtype))
        return grid.flatten(2).transpose(1, 2).float()


class ConvBuilder:
    """Builds `ConvPatches`, which have no released weights."""

    def build(self, network: NetworkConfig, dtype: torch.dtype) -> ConvPatches:
        """See `BackboneBuilder`."""
        return ConvPatches(network.channels, network.patch_size, dtype)

    def from_release(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `BackboneBuilder`."""
        return dict(tensors)

    def explain_mismatch(self, tensors: Mapping[str, Tensor]) -> str:
        """See `BackboneBuilder`."""
        return ""
