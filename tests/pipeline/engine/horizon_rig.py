"""A small engine with HorizonStream's network, for tests."""

from dataclasses import replace

from retinad.pipeline.config import (
    CameraHeadConfig,
    DenseHeadConfig,
    HorizonConfig,
    ModelConfig,
    NetworkConfig,
    OutputConfig,
    StreamConfig,
)
from retinad.pipeline.frames import OutputKind, TokenGroup

WINDOW = 3
HORIZON = ModelConfig(
    name="horizonstream",
    network=NetworkConfig(
        channels=32,
        heads=2,
        depth=4,
        patch_embed="conv",
        register_tokens=0,
        rope3d=False,
        camera_head=CameraHeadConfig(heads=4, blocks=2, rounds=2),
        dense_head=DenseHeadConfig(layers=(0, 1, 2, 3), features=16, channels=(8, 8, 16, 16)),
        horizon=HorizonConfig(pose_tokens=4, memory_layers=(1, 3), period=5, scale_hidden=(8, 8)),
    ),
    image_width=56,
    output=OutputConfig(
        layers=(0, 3), tokens=(TokenGroup.SCALE, TokenGroup.PATCH, TokenGroup.POOLED), pool=2, dtype="float32"
    ),
    outputs=(OutputKind.FEATURES, OutputKind.POSE, OutputKind.DEPTH),
)
STREAM = StreamConfig(scale_frames=WINDOW, window=WINDOW, history_frames=0)
ENDLESS = replace(HORIZON, outputs=(OutputKind.POSE,))
