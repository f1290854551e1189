"""On a CUDA device the engine has the CPU's results, with any backend, and copies each output back once a step."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from retinad.pipeline.config import (
    AttentionName,
    DType,
    ModelConfig,
    NetworkConfig,
    OutputConfig,
    ResizeMode,
    StreamConfig,
)
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.images import ImagePreprocessor
from retinad.pipeline.engine.preprocess import resize_geometry
from retinad.pipeline.frames import Features, Frame, FrameStamp, TokenGroup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZE = (84, 56)
"""The model's own size, so that no resized pixel is rounded to another of 256 levels than on the CPU."""
NETWORK = NetworkConfig(channels=128, heads=2, depth=3, patch_embed="conv")
OUTPUT = OutputConfig(layers=(0, 2), tokens=tuple(TokenGroup), pool=2, dtype="float32")
CPU = ModelConfig(name="test", network=NETWORK, image_width=84, output=OUTPUT, attention="dense")
needs_flashinfer = pytest.mark.skipif(not find_spec("flashinfer"), reason="needs flashinfer")
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
    ("dtype", "tolerance", "attention"),
    # Relative to the largest magnitude. float32: other summation orders in 6 blocks. bfloat16: 8 bits, each branch
    # rounded twice in 6 blocks. float16: 11 bits.
    [
        ("float32", 2e-5, "dense"),
        ("bfloat16", 2e-2, "dense"),
        ("float16", 3e-3, "dense"),
        pytest.param("bfloat16", 2e-2, "flashinfer", marks=needs_flashinfer),
        pytest.param("bfloat16", 2e-2, "auto", marks=needs_flashinfer),
    ],
)
def test_features_equal_the_cpus(dtype: DType, tolerance: float, attention: AttentionName) -> None:
    expected = run(CPU)
    actual = run(replace(CPU, device="cuda:0", dtype=dtype, attention=attention))
    assert len(actual) == len(expected) == 20
    for one, other in zip(actual, expected, strict=True):
        assert one.flags == other.flags
        for tensor, exact in zip(one.tensors, other.tensors, strict=True):
            assert np.abs(tensor.data - exact.data).max() <= tolerance * np.abs(exact.data).max()


@pytest.mark.parametrize("mode", ResizeMode)
def test_images_equal_the_cpus_to_one_level(mode: ResizeMode) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    geometry = resize_geometry((96, 64), mode, 518, 14)
    cpu, gpu = (ImagePreprocessor(torch.device(device)).make(pixels, geometry).cpu() for device in ("cpu", "cuda:0"))
    assert (cpu - gpu).abs().max() <= 1.01 / 255


@pytest.mark.parametrize("attention", ["triton", "dense", pytest.param("flashinfer", marks=needs_flashinfer)])
def test_a_step_copies_each_layer_to_the_host_once_and_waits_only_at_its_end(attention: AttentionName) -> None:
    """Kernels that plan from device tensors would wait three times. FlashInfer's plan waits for a finished copy."""
    with Engine(replace(CPU, device="cuda:0", dtype="bfloat16", attention=attention)) as engine:
        for camera in "ab":
            engine.open_stream(camera, replace(STREAM, scale_frames=1), ResizeMode.CROP)
        pairs = list(zip(frames("a", 8), frames("b", 8), strict=True))
        for pair in pairs[:7]:
            engine.step(pair)
        # acc_events: without it, torch 2.11 warns that events of earlier cycles are cleared; there are none.
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
            engine.step(pairs[7])
    on_device = [event for event in seen.events() if event.device_type.name == "CUDA"]
    copies = [event for event in on_device if "Memcpy DtoH" in event.name]
    kernels = [event for event in on_device if "Mem" not in event.name]
    waits = [event for event in seen.events() if event.name in ("cudaStreamSynchronize", "cudaEventSynchronize")]
    flags = 1  # which frames are finite
    assert (len(copies), len(kernels) > 20) == (len(CPU.output.layers) + flags, True)
    assert len(waits) == (2 if attention == "flashinfer" else 1)
    last = max(copies, key=lambda copy: copy.time_range.start)
    assert last.time_range.start >= max(kernel.time_range.end for kernel in kernels)
