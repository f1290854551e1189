"""The networks that the engine can run, and the choice between them."""

import torch

from ..config import NetworkConfig
from .aggregator import Aggregator
from .patch_features import PatchFeatures

Network = Aggregator | PatchFeatures


def build_network(network: NetworkConfig, dtype: torch.dtype) -> Network:
    """Build an aggregator, or at depth 0 its patch embedding alone; linear layers and convolutions are in `dtype`.

    Raises:
        ValueError: the network's shape is impossible.
    """
    return Aggregator(network, dtype) if network.depth else PatchFeatures(network, dtype)
