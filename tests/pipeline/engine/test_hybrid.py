"""Networks with `kda` blocks: epochs, faults, files and admission treat their states like any other memory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from retinad.pipeline.config import ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.admission import pool_shape
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.errors import StateError
from retinad.pipeline.frames import Features, Flag, FrameFailure
from retinad.pipeline.model.delta_attention import KimiDeltaAttention

from .engine_rig import CONFIG, STREAM, assert_same, frame, good, model_of, play

HYBRID = replace(CONFIG, network=replace(CONFIG.network, mixers=("kda", "attention")))
DELTA = replace(CONFIG, network=replace(CONFIG.network, mixers=("kda",)))
HEAD = 16
STATE_BYTES = 2 * HEAD * HEAD * 4 + 3 * 3 * 32 * 4
"""Bytes of one block: a matrix a head, and the last three inputs of the convolutions over queries, keys and values."""

on_both = pytest.mark.parametrize("config", [HYBRID, DELTA], ids=["hybrid", "kda"])


def states(engine: Engine, camera: str = "a") -> list[Tensor]:
    state = engine.streams[camera].state
    assert state is not None
    layers = engine.pool.shape.states.layers
    return [part.clone() for index in range(layers) for part in state.states(index)]


def assert_records(actual: Sequence[Features], expected: Sequence[Features], tolerance: float = 0) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert (one.epoch, one.epoch_frame, one.keyframe) == (other.epoch, other.epoch_frame, other.keyframe)
        assert_same(one, other, tolerance)


def test_the_pattern_repeats_over_the_global_blocks_that_run() -> None:
    config = replace(CONFIG, network=replace(CONFIG.network, depth=5, mixers=("kda", "kda", "attention")))
    assert config.network.global_mixers == ("kda", "kda", "attention", "kda", "kda")
    config = replace(config, output=replace(config.output, layers=(2, 3)))
    assert (config.attention_layers, config.delta_layers) == (1, 3)
    with Engine(config) as engine:
        assert engine.description.mixers == config.network.global_mixers
        names = [type(block.attn).__name__ for block in model_of(engine).global_blocks]
    assert names == ["KimiDeltaAttention"] * 2 + ["Attention"] + ["KimiDeltaAttention"] * 2


@on_both
def test_a_stream_remembers_frames_that_have_left_the_window(config: ModelConfig) -> None:
    """With only two frames in memory, a `kda` block still knows the first one."""
    stream = StreamConfig(1, 1, history_frames=0)
    with Engine(config) as one, Engine(config) as other:
        for engine, first in ((one, 0), (other, 100)):
            engine.open_stream("a", stream, ResizeMode.CROP)
            play(engine, [frame("a", first), *[frame("a", number) for number in range(1, 6)]])
        last = [play(engine, [frame("a", 6)])[0].tensors[-1].data for engine in (one, other)]
    assert np.abs(last[0] - last[1]).max() > 1e-3


@on_both
def test_a_non_keyframe_reads_the_state_without_changing_a_bit(config: ModelConfig) -> None:
    stream = replace(STREAM, keyframe_interval=3)
    with Engine(config) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP)
        play(engine, [frame("a", number) for number in range(3)])
        for number in range(3, 12):
            before = states(engine)
            (record,) = play(engine, [frame("a", number)])
            unchanged = all(torch.equal(one, other) for one, other in zip(before, states(engine), strict=True))
            assert unchanged is not record.keyframe


@on_both
def test_streams_of_different_ages_and_keyframes_in_one_step_equal_each_alone(config: ModelConfig) -> None:
    settings = {"a": STREAM, "b": replace(STREAM, keyframe_interval=2), "c": replace(STREAM, epoch_frames=6)}
    together: dict[str, list[Features]] = {camera: [] for camera in settings}
    with Engine(config) as engine:
        for camera, stream in settings.items():
            engine.open_stream(camera, stream, ResizeMode.CROP)
        for number in range(16):
            joined = [frame(camera, number) for index, camera in enumerate(settings) if number >= 3 * index]
            for record in good(engine.step(joined)):
                together[record.stamp.camera].append(record)
    for index, (camera, stream) in enumerate(settings.items()):
        with Engine(config) as engine:
            engine.open_stream(camera, stream, ResizeMode.CROP)
            alone = play(engine, [frame(camera, number) for number in range(3 * index, 16)])
        assert_records(together[camera], alone, tolerance=1e-5)


def spoil_image(engine: Engine) -> None:
    """Makes the next image NaN in the model."""
    original = engine.model_runner.model.forward

    def forward(images: Tensor, *rest: object) -> object:
        engine.model_runner.model.forward = original  # type: ignore[method-assign]
        return original(images.index_fill(0, torch.tensor([0]), float("nan")), *rest)  # type: ignore[arg-type]

    engine.model_runner.model.forward = forward  # type: ignore[assignment, method-assign]


def break_scan(engine: Engine) -> None:
    """Makes the next call of the last `kda` layer raise after it has written its state."""
    layer = [part for part in model_of(engine).modules() if isinstance(part, KimiDeltaAttention)][-1]
    original = layer.forward

    def forward(*args: object, **options: object) -> object:
        layer.forward = original  # type: ignore[method-assign]
        original(*args, **options)  # type: ignore[arg-type]
        raise RuntimeError("injected")

    layer.forward = forward  # type: ignore[assignment, method-assign]


@on_both
@pytest.mark.parametrize("spoil", [spoil_image, break_scan], ids=["nan", "exception"])
def test_after_a_fault_a_stream_equals_a_new_one_and_the_others_continue(
    config: ModelConfig, spoil: Callable[[Engine], None]
) -> None:
    with Engine(config) as engine, Engine(config) as fresh:
        for one in (engine, fresh):
            one.open_stream("a", STREAM, ResizeMode.CROP)
        engine.open_stream("b", STREAM, ResizeMode.CROP)
        others = [record for number in range(4) for record in good(engine.step([frame("b", number)]))]
        play(engine, [frame("a", number) for number in range(5)])
        spoil(engine)
        (outcome,) = engine.step([frame("a", 5)])
        assert isinstance(outcome, FrameFailure) or Flag.NAN in outcome.flags
        after = play(engine, [frame("a", number) for number in range(6, 12)])
        expected = play(fresh, [frame("a", number) for number in range(6, 12)])
        others += [record for number in range(4, 8) for record in good(engine.step([frame("b", number)]))]
        fresh.open_stream("b", STREAM, ResizeMode.CROP)
        undisturbed = play(fresh, [frame("b", number) for number in range(8)])
    for record, wanted in zip(after, expected, strict=True):
        assert record.epoch == 1
        assert_same(record, wanted, 0)
    assert_records(others, undisturbed)


@on_both
@pytest.mark.parametrize("carry", [False, True])
def test_a_saved_stream_continues_bit_for_bit_even_over_an_epoch(
    config: ModelConfig, carry: bool, tmp_path: Path
) -> None:
    stream = replace(STREAM, epoch_frames=7, carry_state=carry)
    frames = [frame("a", number) for number in range(22)]
    for cut in (2, 5, 7, 8, 13):
        with Engine(config) as engine, Engine(config) as resumed:
            engine.open_stream("a", stream, ResizeMode.CROP)
            play(engine, frames[:cut])
            engine.save_state("a", tmp_path / "a.safetensors")
            resumed.open_stream("a", stream, ResizeMode.CROP)
            resumed.load_state("a", tmp_path / "a.safetensors")
            assert_records(play(resumed, frames[cut:]), play(engine, frames[cut:]))


def test_a_file_of_other_mixers_is_refused(tmp_path: Path) -> None:
    with Engine(HYBRID) as engine, Engine(DELTA) as other:
        for one in (engine, other):
            one.open_stream("a", STREAM, ResizeMode.CROP)
        play(engine, [frame("a", number) for number in range(3)])
        engine.save_state("a", tmp_path / "a.safetensors")
        with pytest.raises(StateError, match=r"model\.network\.mixers was \[kda, attention\], is \[kda\]"):
            other.load_state("a", tmp_path / "a.safetensors")


def test_a_new_epoch_keeps_the_states_only_with_carry_state() -> None:
    """A carried state has already scanned the frames that the epoch begins with, so they must not change it."""
    for carry in (False, True):
        with Engine(DELTA) as engine:
            engine.open_stream("a", replace(STREAM, epoch_frames=6, carry_state=carry), ResizeMode.CROP)
            play(engine, [frame("a", number) for number in range(6)])
            before = states(engine)
            stream = engine.streams["a"]
            engine.executor.renew([stream], 0)
            same = all(torch.equal(one, other) for one, other in zip(before, states(engine), strict=True))
            assert same is carry
            (record,) = play(engine, [frame("a", 6)])
            assert (record.epoch, record.epoch_frame) == (1, 2)
            assert not all(torch.equal(one, other) for one, other in zip(before, states(engine), strict=True))


@on_both
def test_a_carried_state_does_not_survive_a_fault(config: ModelConfig) -> None:
    stream = replace(STREAM, epoch_frames=6, carry_state=True)
    with Engine(config) as engine, Engine(config) as fresh:
        for one in (engine, fresh):
            one.open_stream("a", stream, ResizeMode.CROP)
        play(engine, [frame("a", number) for number in range(6)])
        break_scan(engine)  # in the first block of the new epoch
        after = play(engine, [frame("a", number) for number in range(6, 10)])
        expected = play(fresh, [frame("a", number) for number in range(6, 10)])
    for record, wanted in zip(after, expected, strict=True):
        assert_same(record, wanted, 0)


def test_the_states_are_counted_and_constant() -> None:
    with Engine(DELTA) as engine:
        engine.open_stream("a", StreamConfig(1, 1, history_frames=0), ResizeMode.CROP)
        sizes = set()
        for number in range(40):
            engine.step([frame("a", number)])
            sizes.add(engine.statistics().streams[0].nbytes)
    assert sizes == {2 * STATE_BYTES}
    assert pool_shape(HYBRID).stream_bytes == STATE_BYTES
