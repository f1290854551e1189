"""The fused network equals the plain one: over window, history and epoch edges, for every mixture of streams."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from retinad.pipeline.cache.backends.select import Choice
from retinad.pipeline.cache.backends.triton import TritonBackend
from retinad.pipeline.cache.kv_pool import KVCachePool
from retinad.pipeline.config import (
    MixerName,
    ModelConfig,
    NetworkConfig,
    OutputConfig,
    ResizeMode,
    RetentionConfig,
    StreamConfig,
)
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Flag, TokenGroup

from .engine_rig import assert_same, frame, good, model_of

NETWORK = NetworkConfig(channels=64, heads=4, depth=2, patch_embed="conv")
OUTPUT = OutputConfig(layers=(0, 1), tokens=tuple(TokenGroup), pool=2, dtype="float32")
CONFIG = ModelConfig(name="test", network=NETWORK, image_width=56, output=OUTPUT, dtype="bfloat16", attention="dense")
TOLERANCE = 0.03
"""For outputs of about 3: bfloat16 has 8 bits, and sums are rounded to it at the same places, but in another order."""


@pytest.fixture(autouse=True)
def _unused_places_are_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = KVCachePool._empty
    monkeypatch.setattr(KVCachePool, "_empty", lambda pool, tokens: empty(pool, tokens).fill_(float("nan")))


def fused_engine(config: ModelConfig) -> Engine:
    """Make an engine on the CPU that uses the kernels' references, which no config selects, without captures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retinad.pipeline.engine.execution.fusing_obstacle", lambda *_, **__: None)
        patch.setattr(
            "retinad.pipeline.engine.engine.choose_backend", lambda *_: Choice("triton", None, TritonBackend())
        )
        return Engine(replace(config, execution="fused"))


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
    "d": StreamConfig(2, 1, history_frames=3, retention=RetentionConfig(camera_only=True), run_frames=2),
    "e": StreamConfig(4, 3, 2, 2, RetentionConfig(include_scale_frames=False), run_frames=3),
    "f": StreamConfig(2, 8, keyframe_interval=2, epoch_frames=3, run_frames=7, carry_state=True),
}


@pytest.mark.parametrize("network", networks().values(), ids=networks())
@torch.inference_mode()
def test_features_equal_those_of_the_plain_network(network: NetworkConfig) -> None:
    config = replace(CONFIG, network=network)
    with Engine(config) as plain, fused_engine(config) as fused:
        for engine in (plain, fused):
            for camera, stream in STREAMS.items():
                engine.open_stream(camera, stream, ResizeMode.CROP)
        for number in range(14):
            cameras = [camera for index, camera in enumerate(STREAMS) if number >= index]
            frames = [frame(camera, number) for camera in cameras]
            if number >= 6:
                frames += [frame(camera, 100 * more + number) for camera in "adef" for more in (1, 2)]
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


def float8(config: ModelConfig = CONFIG) -> Engine:
    return fused_engine(replace(config, memory_dtype="float8_e4m3fn"))


def test_a_memory_of_float8_takes_half_and_differs_by_its_rounding() -> None:
    """3 bits of a mantissa round a number by up to 6 %; attention averages over many keys."""
    stream = StreamConfig(2, 3, history_frames=2, run_frames=2)
    errors = []
    with fused_engine(CONFIG) as whole, float8() as half:
        for engine in (whole, half):
            engine.open_stream("a", stream, ResizeMode.CROP)
        for number in range(0, 20, 2):
            pair = [frame("a", number), frame("a", number + 1)]
            for actual, expected in zip(good(half.step(pair)), good(whole.step(pair)), strict=True):
                for mine, theirs in zip(actual.tensors, expected.tensors, strict=True):
                    errors.append(float(np.linalg.norm(mine.data - theirs.data) / np.linalg.norm(theirs.data)))
        sizes = [engine.statistics().streams[0].nbytes for engine in (half, whole)]
    assert 1e-4 < max(errors) <= 0.06
    assert 2 * sizes[0] == sizes[1]


def test_a_stream_of_float8_continues_from_a_file_bit_for_bit(tmp_path: Path) -> None:
    config = replace(CONFIG, network=networks()["hybrid"])
    with float8(config) as engine, float8(config) as resumed:
        for one in (engine, resumed):
            one.open_stream("a", STREAMS["a"], ResizeMode.CROP)
        for number in range(9):
            good(engine.step([frame("a", number)]))
        engine.save_state("a", tmp_path / "a.safetensors")
        resumed.load_state("a", tmp_path / "a.safetensors")
        for number in range(9, 15):
            (actual,), (expected,) = (good(one.step([frame("a", number)])) for one in (resumed, engine))
            assert_same(actual, expected, tolerance=0)


def test_nan_in_a_memory_of_float8_is_not_clamped_to_its_largest_number() -> None:
    with float8() as engine:
        engine.open_stream("a", StreamConfig(1, 3), ResizeMode.CROP)
        for number in range(3):
            good(engine.step([frame("a", number)]))
        weight = model_of(engine).get_parameter("global_blocks.0.attn.k_norm.weight")
        kept = weight.clone()
        with torch.no_grad():
            weight.fill_(float("nan"))
            (spoilt,) = good(engine.step([frame("a", 3)]))
            weight.copy_(kept)
        (after,) = good(engine.step([frame("a", 4)]))
    assert Flag.NAN in spoilt.flags
    assert (after.epoch, Flag.NAN in after.flags) == (1, False)


def test_the_error_of_bfloat16_does_not_grow_along_a_stream() -> None:
    """In related implementations, rounding accumulated from frame to frame through the memory: 180-fold in 1,000."""
    exact = replace(CONFIG, dtype="float32")
    errors = []
    with fused_engine(CONFIG) as rounded, Engine(exact) as whole:
        for engine in (rounded, whole):
            engine.open_stream("a", StreamConfig(2, 4, history_frames=8), ResizeMode.CROP)
        for number in range(400):
            one = frame("a", number)
            for actual, expected in zip(good(rounded.step([one])), good(whole.step([one])), strict=True):
                deepest, wanted = actual.tensors[-1].data, expected.tensors[-1].data
                errors.append(float(np.linalg.norm(deepest - wanted) / np.linalg.norm(wanted)))
    early, late = np.mean(errors[20:120]), np.mean(errors[-100:])
    assert early < 0.02
    assert abs(late / early - 1) < 0.1
