"""A network on a GPU, large enough for the kernels' real block sizes, and the error to expect of it in bfloat16."""

from dataclasses import replace

import numpy as np

from retinad.pipeline.config import MixerName, ModelConfig, NetworkConfig, OutputConfig
from retinad.pipeline.frames import Features, TokenGroup

NETWORK = NetworkConfig(channels=256, heads=4, depth=3, patch_embed="conv")
DINO = NetworkConfig(channels=384, heads=6, depth=2, patch_embed="dinov2_vits14_reg")
OUTPUT = OutputConfig(layers=(0, 1), tokens=tuple(TokenGroup), pool=2, dtype="float32")
CONFIG = ModelConfig(
    name="test", network=NETWORK, image_width=112, output=OUTPUT, device="cuda:0", dtype="bfloat16", attention="triton"
)
ERROR = 1.5e-2
"""Relative to the norm of a frame's tokens. Each linear layer rounds its input to 8 bits (2e-3), and fused sums run in
another order; three pairs of blocks add up to a few times that. A wrong key or position causes 0.1 and more."""

HYBRID: tuple[MixerName, ...] = ("kda", "attention")
NETWORKS = {"attention": NETWORK, "hybrid": replace(NETWORK, mixers=HYBRID), "dinov2": DINO}


def error(actual: Features, expected: Features) -> float:
    return max(
        float(np.linalg.norm(one.data - other.data) / np.linalg.norm(other.data))
        for one, other in zip(actual.tensors, expected.tensors, strict=True)
    )
