"""The network of depth 0: a patch embedding alone, such as DINOv2, for those who have only its weights. No memory."""

import torch
from torch import Tensor, nn

from ..config import NetworkConfig
from .aggregator import MEAN, STD, FrameNumbers, LayerOutput
from .attention import MemoryStep
from .backbones import build_patch_embed


class PatchFeatures(nn.Module):
    """Takes the place of an `Aggregator` without blocks.

    Args:
        network: its shape; only the patch embedding's part of it is used.
        dtype: number format of linear layers and convolutions; all else is float32.

    Raises:
        ValueError: the shape is impossible.
    """

    def __init__(self, network: NetworkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.network = network
        self.patch_embed = build_patch_embed(network, dtype)
        # Plain constants, so real tensors even where the parameters are made on the meta device.
        self.register_buffer("mean", torch.tensor(MEAN, device="cpu").view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD, device="cpu").view(3, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor

    def forward(
        self, images: Tensor, numbers: FrameNumbers, memory: MemoryStep, layers: tuple[int, ...]
    ) -> tuple[LayerOutput, ...]:
        """The patch tokens of pictures, float32 [F, 3, h, w], RGB in [0, 1], as layer 0; each frame alone.

        The other arguments are those of `Aggregator` and change nothing.
        """
        return (LayerOutput(0, self.patch_embed((images - self.mean) / self.std), None),)
