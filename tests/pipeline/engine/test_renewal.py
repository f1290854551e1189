"""After a requested end of an epoch, a stream continues as if the epoch had been that long, or as a new stream."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from retinad.pipeline.config import MixerName, ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.errors import StateError
from retinad.pipeline.frames import Features, Flag, Frame

from .engine_rig import CONFIG, assert_same, frame, good, play

END = 8
EPOCHS = StreamConfig(scale_frames=2, window=3, history_frames=2, epoch_frames=50)
ENDLESS = replace(EPOCHS, epoch_frames=0)
FRAMES = [frame("a", number) for number in range(END + 6)]


def network(mixers: tuple[MixerName, ...]) -> ModelConfig:
    return replace(CONFIG, network=replace(CONFIG.network, mixers=mixers))


on_both = pytest.mark.parametrize(
    "config", [network(("attention",)), network(("kda", "attention"))], ids=["attention", "hybrid"]
)


def step(engine: Engine, frames: Sequence[Frame], length: int) -> list[Features]:
    """Run frames in steps of `length`."""
    starts = range(0, len(frames), length)
    return [record for start in starts for record in good(engine.step(frames[start : start + length]))]


def assert_equal(actual: Sequence[Features], expected: Sequence[Features]) -> None:
    """Bit for bit."""
    for one, other in zip(actual, expected, strict=True):
        assert (one.stamp, one.epoch, one.epoch_frame, one.keyframe, one.flags, one.context) == (
            other.stamp,
            other.epoch,
            other.epoch_frame,
            other.keyframe,
            other.flags,
            other.context,
        )
        assert_same(one, other, tolerance=0)


@on_both
@pytest.mark.parametrize("carry", [False, True], ids=["", "carried"])
@pytest.mark.parametrize("run", [1, 3], ids=["single", "runs"])
def test_a_requested_end_equals_an_epoch_of_that_length(config: ModelConfig, carry: bool, run: int) -> None:
    """Two requests in a row end one epoch. Only one epoch is compared, since the oracle's next one would end too."""
    stream = replace(EPOCHS, carry_state=carry, run_frames=run)
    with Engine(config) as engine, Engine(config) as oracle:
        engine.open_stream("a", stream, ResizeMode.CROP)
        oracle.open_stream("a", replace(stream, epoch_frames=END), ResizeMode.CROP)
        assert_equal(play(engine, FRAMES[:END]), play(oracle, FRAMES[:END]))
        assert [engine.renew_stream("a"), engine.renew_stream("a")] == [True, True]
        records = step(engine, FRAMES[END:], run)
        assert_equal(records, step(oracle, FRAMES[END:], run))
    assert [(record.epoch, record.epoch_frame) for record in records] == [(1, number) for number in range(2, 8)]
    assert [Flag.RESET in record.flags for record in records] == [True] + [False] * 5
    assert not any(Flag.WARMUP in record.flags for record in records)


@on_both
@pytest.mark.parametrize("run", [1, 3], ids=["single", "runs"])
def test_without_epochs_the_stream_continues_like_a_new_one(config: ModelConfig, run: int) -> None:
    stream = replace(ENDLESS, run_frames=run)
    with Engine(config) as engine, Engine(config) as fresh:
        for one in (engine, fresh):
            one.open_stream("a", stream, ResizeMode.CROP)
        play(engine, FRAMES[:END])
        assert engine.renew_stream("a")
        records = step(engine, FRAMES[END:], run)
        expected = step(fresh, FRAMES[END:], run)
    assert records[0].flags == expected[0].flags | {Flag.RESET}
    assert_equal(records[1:], [replace(record, epoch=1) for record in expected[1:]])
    assert (records[0].epoch, records[0].epoch_frame) == (1, 0)
    assert_same(records[0], expected[0], tolerance=0)


@pytest.mark.parametrize("stream", [EPOCHS, ENDLESS], ids=["epochs", "endless"])
def test_frames_that_wait_for_a_first_block_continue_to_wait(stream: StreamConfig) -> None:
    stream = replace(stream, scale_frames=3)
    with Engine(CONFIG) as engine, Engine(CONFIG) as other:
        for one in (engine, other):
            one.open_stream("a", stream, ResizeMode.CROP)
        assert not engine.renew_stream("a")
        assert play(engine, FRAMES[:2]) == []
        assert not engine.renew_stream("a")
        assert_equal(play(engine, FRAMES[2:6]), play(other, FRAMES[:6]))


@pytest.mark.parametrize("stream", [EPOCHS, ENDLESS], ids=["epochs", "endless"])
def test_another_stream_in_the_same_steps_is_not_affected(stream: StreamConfig) -> None:
    found: dict[bool, list[Features]] = {}
    frames = [(one, frame("b", number)) for number, one in enumerate(FRAMES)]
    for renew in (False, True):
        with Engine(CONFIG) as engine:
            for camera in "ab":
                engine.open_stream(camera, stream, ResizeMode.CROP)
            records = [record for both in frames[:END] for record in good(engine.step(both))]
            if renew:
                engine.renew_stream("a")
            records += [record for both in frames[END:] for record in good(engine.step(both))]
        found[renew] = records
        assert {record.epoch for record in records if record.stamp.camera == "a"} == {0, 1 if renew else 0}
    theirs = [[record for record in found[renew] if record.stamp.camera == "b"] for renew in (True, False)]
    assert len(theirs[0]) == len(FRAMES)
    for one, other in zip(*theirs, strict=True):
        assert (one.epoch, one.epoch_frame, one.flags) == (0, other.epoch_frame, other.flags)
        assert_same(one, other, tolerance=1e-5 if stream is ENDLESS else 0)  # "a" waits, so that "b" runs alone


def test_a_break_before_the_next_frame_begins_one_empty_epoch() -> None:
    after = [frame("a", number, (96, 48)) for number in range(END, END + 4)]
    with Engine(CONFIG) as engine, Engine(CONFIG) as fresh:
        for one in (engine, fresh):
            one.open_stream("a", EPOCHS, ResizeMode.CROP)
        play(engine, FRAMES[:END])
        engine.renew_stream("a")
        records = play(engine, after)
        for record, expected in zip(records, play(fresh, after), strict=True):
            assert (record.epoch, record.epoch_frame) == (1, expected.epoch_frame)
            assert_same(record, expected, tolerance=0)


def test_a_file_records_that_the_epoch_was_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with Engine(CONFIG) as engine, Engine(CONFIG) as resumed:
        engine.open_stream("a", EPOCHS, ResizeMode.CROP)
        play(engine, FRAMES[:END])
        engine.renew_stream("a")
        engine.save_state("a", path)
        resumed.open_stream("a", EPOCHS, ResizeMode.CROP)
        resumed.load_state("a", path)
        assert_equal(play(resumed, FRAMES[END:]), play(engine, FRAMES[END:]))
        resumed.load_state("a", path)
        (record,) = play(resumed, FRAMES[END : END + 1])
    assert (record.epoch, record.epoch_frame) == (1, 2)


def test_without_epochs_there_is_nothing_to_save_then(tmp_path: Path) -> None:
    with Engine(CONFIG) as engine:
        engine.open_stream("a", ENDLESS, ResizeMode.CROP)
        play(engine, FRAMES[:END])
        engine.renew_stream("a")
        with pytest.raises(StateError, match="has no memory yet"):
            engine.save_state("a", tmp_path / "a.safetensors")


def test_a_camera_without_a_stream_is_named() -> None:
    with Engine(CONFIG) as engine, pytest.raises(ValueError, match="camera 'door' has no stream"):
        engine.renew_stream("door")
