"""A small engine with all heads, for tests."""

from dataclasses import replace

from retinad.pipeline.config import CameraHeadConfig, DenseHeadConfig, ModelConfig
from retinad.pipeline.frames import Features, Numbers, OutputKind

from .engine_rig import CONFIG, NETWORK

EVERY = (OutputKind.FEATURES, OutputKind.POSE, OutputKind.DEPTH, OutputKind.POINTS)
HEADS: ModelConfig = replace(
    CONFIG,
    network=replace(
        NETWORK,
        depth=4,
        camera_head=CameraHeadConfig(heads=4, blocks=2, rounds=3),
        dense_head=DenseHeadConfig(layers=(0, 1, 2, 3), features=16, channels=(8, 8, 16, 16)),
    ),
    outputs=EVERY,
)


def numbers(features: Features, name: str) -> Numbers:
    (found,) = (tensor.data for tensor in features.tensors if tensor.name == name)
    return found
