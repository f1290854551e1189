"""The network of depth 0: a backbone alone, such as DINOv2. It has no cache."""

import torch
from torch import Tensor

from ..config import NetworkConfig
from .aggregator import MEAN, STD
from .attention import CacheStep
from .backbones import build_patch_embed
from .network import FrameNumbers, LayerOutput, Network


class PatchFeatures(Network):
    """A network without blocks.

    Args:
        network: the network's shape; only the settings of the patch embedding are used.
        dtype: number format of linear layers and convolutions; everything else is float32.

    Raises:
        ValueError: the shape is impossible.
    """

    def __init__(self, network: NetworkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.network = network
        self.patch_embed = build_patch_embed(network, dtype)
        # Constants: real tensors even if the parameters are on the meta device.
        self.register_buffer("mean", torch.tensor(MEAN, device="cpu").view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD, device="cpu").view(3, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor

    def forward(
        self, images: Tensor, numbers: FrameNumbers, step: CacheStep, layers: tuple[int, ...]
    ) -> tuple[LayerOutput, ...]:
        """See `Network`. Returns the patch tokens as layer 0; ignores all arguments but `images`."""
        return (LayerOutput(0, self.patch_embed((images - self.mean) / self.std), None),)
