"""The LingBot-Map family of networks (arXiv 2604.14141)."""

import torch

from ..config import NetworkConfig
from .aggregator import Aggregator
from .network import Network
from .patch_features import PatchFeatures


def build_lingbot_map(network: NetworkConfig, dtype: torch.dtype) -> Network:
    """Build an aggregator, or at depth 0 its patch embedding alone; linear layers and convolutions are in `dtype`.

    Raises:
        ValueError: the network's shape is impossible.
    """
    return Aggregator(network, dtype) if network.depth else PatchFeatures(network, dtype)
