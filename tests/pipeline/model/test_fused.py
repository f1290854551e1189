"""The fused network is the plain one: over window, history and epoch edges, in every mixture of streams and runs."""

from dataclasses import replace

import pytest
import torch

from retinad.pipeline.cache.ranged import RangedBackend
from retinad.pipeline.captured import FusedSteps
from retinad.pipeline.config import MixerName, ModelConfig, NetworkConfig, OutputConfig, StreamConfig
from retinad.pipeline.engine import Engine
from retinad.pipeline.frames import TokenGroup
from retinad.pipeline.model.aggregator import Aggregator
from retinad.pipeline.model.fused import FusedAggregator

from ..engine_rig import frame, good

NETWORK = NetworkConfig(channels=64, heads=4, depth=2, patch_embed="conv")
OUTPUT = OutputConfig(layers=(0, 1), tokens=tuple(TokenGroup), pool=2, dtype="float32")
CONFIG = ModelConfig(name="test", network=NETWORK, image_width=56, output=OUTPUT, dtype="bfloat16", attention="dense")
TOLERANCE = 0.03
"""Of outputs of about 3: bfloat16 keeps 8 bits, and sums are rounded to it at the same places, but in another order."""


def fused_engine(config: ModelConfig) -> Engine:
    """On the CPU, where the kernels' references run and nothing is captured."""
    engine = Engine(config)
    model, pool = engine._forward._model, engine._pool
    assert isinstance(model, Aggregator)
    engine._forward._backend = RangedBackend()
    engine._forward._fused = FusedSteps(FusedAggregator(model), pool, config.output, capture=False)
    return engine


def networks() -> dict[str, NetworkConfig]:
    hybrid: tuple[MixerName, ...] = ("kda", "attention")
    return {
        "attention": NETWORK,
        "hybrid": replace(NETWORK, mixers=hybrid),
        "two dimensions": replace(NETWORK, rope3d=False),
    }


STREAMS = {
    "a": StreamConfig(2, 3, history_frames=2, run_frames=3),
    "b": StreamConfig(1, 4, keyframe_interval=2, epoch_frames=7),
    "c": StreamConfig(3, 2, history_frames=0),
}


@pytest.mark.parametrize("network", networks().values(), ids=networks())
@torch.inference_mode()
def test_features_equal_those_of_the_plain_network(network: NetworkConfig) -> None:
    from retinad.pipeline.config import ResizeMode

    config = replace(CONFIG, network=network)
    with Engine(config) as plain, fused_engine(config) as fused:
        for engine in (plain, fused):
            for camera, stream in STREAMS.items():
                engine.open_stream(camera, stream, ResizeMode.CROP)
        for number in range(14):
            cameras = [camera for index, camera in enumerate(STREAMS) if number >= 2 * index]
            frames = [frame(camera, number) for camera in cameras]
            if number >= 6:
                frames += [frame("a", 100 + 2 * number), frame("a", 101 + 2 * number)]
            expected, actual = good(plain.step(frames)), good(fused.step(frames))
            assert len(actual) == len(expected)
            for one, other in zip(actual, expected, strict=True):
                assert (one.stamp, one.epoch, one.keyframe, one.flags) == (
                    other.stamp,
                    other.epoch,
                    other.keyframe,
                    other.flags,
                )
                for mine, theirs in zip(one.tensors, other.tensors, strict=True):
                    error = abs(mine.data - theirs.data).max()
                    assert error <= TOLERANCE, (number, one.stamp.camera, mine.name, error)
