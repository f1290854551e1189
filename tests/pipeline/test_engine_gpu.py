"""On a CUDA device the engine gives what it gives on the CPU, and copies back once a step."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from retinad.pipeline.config import ModelConfig, NetworkConfig, OutputConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine import Engine
from retinad.pipeline.frames import Features, Frame, FrameStamp, TokenGroup
from retinad.pipeline.preprocess import fit, preprocess

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZE = (96, 64)
NETWORK = NetworkConfig(channels=128, heads=2, depth=3, patch_embed="conv")
OUTPUT = OutputConfig(layers=(0, 2), tokens=tuple(TokenGroup), pool=2, dtype="float32")
CPU = ModelConfig(name="test", network=NETWORK, image_width=84, output=OUTPUT)
STREAM = StreamConfig(scale_frames=2, window=3, keyframe_interval=2)


def frames(camera: str, count: int) -> Iterator[Frame]:
    for number in range(count):
        generator = np.random.default_rng([sum(camera.encode()), number])
        stamp = FrameStamp(camera, 0, number, 0, 0, None, SIZE)
        yield Frame(stamp, generator.integers(0, 256, (SIZE[1], SIZE[0], 3), dtype=np.uint8))


def run(config: ModelConfig) -> list[Features]:
    with Engine(config) as engine:
        for camera in "ab":
            engine.open_stream(camera, STREAM, ResizeMode.CROP)
        engine.warm_up([SIZE])
        steps = zip(frames("a", 10), frames("b", 10), strict=True)
        return [outcome for step in steps for outcome in engine.step(step) if isinstance(outcome, Features)]


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # Of the largest magnitude. float32: other orders of summation through 6 blocks. bfloat16: 8 bits, each branch
    # rounded twice in 6 blocks. float16: 11 bits.
    [("float32", 2e-5), ("bfloat16", 2e-2), ("float16", 3e-3)],
)
def test_features_equal_the_cpus(dtype: str, tolerance: float) -> None:
    expected, actual = run(CPU), run(replace(CPU, device="cuda:0", dtype=dtype))  # type: ignore[arg-type]
    assert len(actual) == len(expected) == 20
    for one, other in zip(actual, expected, strict=True):
        assert one.flags == other.flags
        for tensor, exact in zip(one.tensors, other.tensors, strict=True):
            assert np.abs(tensor.data - exact.data).max() <= tolerance * np.abs(exact.data).max()


@pytest.mark.parametrize("mode", ResizeMode)
def test_pictures_equal_the_cpus_to_one_level(mode: ResizeMode) -> None:
    pixels = next(frames("a", 1)).pixels
    how = fit(SIZE, mode, 518, 14)
    cpu, gpu = (preprocess(pixels, how, torch.device(device)).cpu() for device in ("cpu", "cuda:0"))
    assert (cpu - gpu).abs().max() <= 1.01 / 255


def test_a_step_copies_to_the_host_once() -> None:
    with Engine(replace(CPU, device="cuda:0", dtype="bfloat16")) as engine:
        engine.open_stream("a", replace(STREAM, scale_frames=1), ResizeMode.CROP)
        pictures = list(frames("a", 4))
        for picture in pictures[:3]:
            engine.step([picture])
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            engine.step([pictures[3]])
    assert sum(event.count for event in seen.key_averages() if "Memcpy DtoH" in event.key) == 1
