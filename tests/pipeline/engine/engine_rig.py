"""A small engine for tests, with helpers to make frames, run steps and compare records."""

import time
from collections.abc import Sequence

import numpy as np

from retinad.pipeline.config import ModelConfig, NetworkConfig, OutputConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.engine import Engine, Outcome
from retinad.pipeline.frames import Features, Frame, FrameFailure, FrameStamp, Size, TokenGroup
from retinad.pipeline.model.aggregator import Aggregator

NETWORK = NetworkConfig(channels=32, heads=2, depth=2, patch_embed="conv")
OUTPUT = OutputConfig(layers=(0, 1), tokens=tuple(TokenGroup), pool=2, dtype="float32")
CONFIG = ModelConfig(name="test", network=NETWORK, image_width=56, output=OUTPUT)
STREAM = StreamConfig(scale_frames=2, window=3)
TOLERANCE = 1e-5
"""Absolute, for outputs of about 3: float32 matrix products round differently for another number of rows."""


def frame(camera: str, number: int, size: Size = (64, 48), stream_epoch: int = 0, seed: int | None = None) -> Frame:
    generator = np.random.default_rng([sum(camera.encode()), number if seed is None else seed])
    pixels = generator.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    stamp = FrameStamp(camera, stream_epoch, number, time.time_ns(), time.monotonic_ns(), None, size)
    return Frame(stamp, pixels)


def good(outcomes: Sequence[Outcome]) -> list[Features]:
    assert all(isinstance(outcome, Features) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, Features)]


def bad(outcomes: Sequence[Outcome]) -> list[FrameFailure]:
    return [outcome for outcome in outcomes if isinstance(outcome, FrameFailure)]


def play(engine: Engine, frames: Sequence[Frame]) -> list[Features]:
    return [features for one in frames for features in good(engine.step([one]))]


def model_of(engine: Engine) -> Aggregator:
    model = engine.model_runner.model
    assert isinstance(model, Aggregator)
    return model


def assert_same(actual: Features, expected: Features, tolerance: float = TOLERANCE) -> None:
    for one, other in zip(actual.tensors, expected.tensors, strict=True):
        assert one.name == other.name
        np.testing.assert_allclose(one.data, other.data, rtol=0, atol=tolerance)


def alone(
    frames: Sequence[Frame], stream: StreamConfig = STREAM, resize: ResizeMode = ResizeMode.CROP
) -> list[Features]:
    camera = frames[0].stamp.camera
    with Engine(CONFIG) as engine:
        engine.open_stream(camera, stream, resize)
        return [*play(engine, frames), *good(engine.flush(camera))]
