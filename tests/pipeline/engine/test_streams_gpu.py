"""On a CUDA device, epochs and saved streams behave as on the CPU."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from retinad.pipeline.config import ModelConfig, NetworkConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.preprocess import preprocess, resize_geometry
from retinad.pipeline.engine.replay import ReplayBuffer
from retinad.pipeline.frames import Features, Frame

from .engine_rig import CONFIG, assert_same, frame, good, play

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

NETWORK = NetworkConfig(channels=128, heads=2, depth=2, patch_embed="conv")
DENSE: ModelConfig = replace(CONFIG, network=NETWORK, device="cuda:0", dtype="bfloat16", attention="dense")
EPOCHS = StreamConfig(scale_frames=2, window=3, history_frames=4, epoch_frames=8)


def run(config: ModelConfig, frames: Sequence[Frame], stream: StreamConfig = EPOCHS) -> list[Features]:
    with Engine(config) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP)
        return play(engine, frames)


@pytest.mark.parametrize("config", [DENSE, replace(DENSE, attention="auto"), replace(DENSE, dtype="float32")], ids=str)
def test_an_epoch_equals_a_new_stream_that_began_with_the_last_frames(config: ModelConfig) -> None:
    frames = [frame("a", number) for number in range(14)]
    records = run(config, frames)
    assert [record.epoch for record in records] == [0] * 8 + [1] * 6
    # Without epochs the memory is longer; float32 kernels are also chosen by addresses, and sum in another order.
    tolerance = 1e-5 if config.dtype == "float32" else 0
    for actual, expected in zip(records[8:], run(config, frames[6:], replace(EPOCHS, epoch_frames=0))[2:], strict=True):
        assert_same(actual, expected, tolerance)


@pytest.mark.parametrize("config", [DENSE, replace(DENSE, attention="auto")], ids=str)
def test_a_stream_continues_from_its_file(config: ModelConfig, tmp_path: Path) -> None:
    frames = [frame("a", number) for number in range(14)]
    whole = run(config, frames)
    for count in (2, 7, 11):
        with Engine(config) as engine:
            engine.open_stream("a", EPOCHS, ResizeMode.CROP)
            play(engine, frames[:count])
            engine.save_state("a", tmp_path / "a")
        with Engine(config) as engine:
            engine.open_stream("a", EPOCHS, ResizeMode.CROP)
            engine.load_state("a", tmp_path / "a")
            for actual, expected in zip(play(engine, frames[count:]), whole[count:], strict=True):
                assert_same(actual, expected, tolerance=0)


def test_a_file_can_be_restored_on_another_device(tmp_path: Path) -> None:
    frames = [frame("a", number) for number in range(10)]
    gpu = replace(DENSE, dtype="float32")
    whole = run(replace(gpu, device="cpu"), frames)
    with Engine(gpu) as engine:
        engine.open_stream("a", EPOCHS, ResizeMode.CROP)
        play(engine, frames[:6])
        engine.save_state("a", tmp_path / "a")
    with Engine(replace(gpu, device="cpu")) as engine:
        engine.open_stream("a", EPOCHS, ResizeMode.CROP)
        engine.load_state("a", tmp_path / "a")
        for actual, expected in zip(good(engine.step([frames[6]])), whole[6:7], strict=True):
            for one, other in zip(actual.tensors, expected.tensors, strict=True):
                # Images made on a GPU may differ by one level of 255 in places, which is 4e-3.
                assert np.abs(one.data - other.data).max() <= 1e-3 * np.abs(other.data).max()


def test_images_are_restored_from_bytes_unchanged() -> None:
    device = torch.device("cuda:0")
    recent = ReplayBuffer(1)
    for size in ((64, 48), (200, 150)):
        image = preprocess(frame("a", 0, size).pixels, resize_geometry(size, ResizeMode.PAD, 56, 14), device)
        recent.add(image)
        assert torch.equal(recent.images()[0], image)
