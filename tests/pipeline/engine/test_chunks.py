"""Several frames of a stream in one step have the results of single steps, also where windows, epochs or sizes end."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from retinad.pipeline.config import AttentionName, MixerName, ModelConfig, ResizeMode, RetentionConfig, StreamConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.outputs import OutputHeads
from retinad.pipeline.frames import Features, Flag, Frame

from .engine_rig import CONFIG, assert_same, frame, good

HYBRID: tuple[MixerName, ...] = ("kda", "attention")
TOLERANCE = 1e-4
"""For outputs of about 3: the promised accuracy in float32; sums of other lengths round differently."""


def model(mixers: tuple[MixerName, ...], attention: AttentionName = "dense") -> ModelConfig:
    return replace(CONFIG, network=replace(CONFIG.network, mixers=mixers), attention=attention)


def run(config: ModelConfig, stream: StreamConfig, frames: Sequence[Frame], lengths: Sequence[int]) -> list[Features]:
    """Run all frames in steps whose lengths repeat, and flush at the end."""
    given, left = list[Features](), list(frames)
    with Engine(config) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP)
        for length in itertools.cycle(lengths):
            if not left:
                return [*given, *good(engine.flush("a"))]
            given += good(engine.step(left[:length]))
            left = left[length:]
    raise AssertionError("a cycle has no end")


def assert_equal(actual: Sequence[Features], expected: Sequence[Features]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert (one.stamp, one.epoch, one.epoch_frame, one.keyframe, one.flags) == (
            other.stamp,
            other.epoch,
            other.epoch_frame,
            other.keyframe,
            other.flags,
        )
        assert_same(one, other, TOLERANCE)


STREAMS = {
    "window edges": StreamConfig(2, 33, history_frames=5),
    "small window": StreamConfig(2, 3, history_frames=2),
    "keyframes": StreamConfig(2, 4, keyframe_interval=3, history_frames=3),
    "keyframes, no scale frames kept": StreamConfig(4, 3, 2, 3, RetentionConfig(include_scale_frames=False)),
    "camera tokens only": StreamConfig(2, 3, history_frames=4, retention=RetentionConfig(camera_only=True)),
    "no history": StreamConfig(1, 3, 2, history_frames=0),
    "no special tokens": StreamConfig(3, 2, retention=RetentionConfig(cross_frame_special=False)),
    "window of one": StreamConfig(1, 1, history_frames=2),
    "epochs": StreamConfig(2, 5, epoch_frames=11),
    "epochs shorter than a run": StreamConfig(2, 8, keyframe_interval=2, epoch_frames=3),
    "epochs, keyframes": StreamConfig(3, 4, keyframe_interval=2, epoch_frames=9),
    "epochs, state carried": StreamConfig(3, 4, keyframe_interval=2, epoch_frames=9, carry_state=True),
}


@pytest.mark.parametrize("mixers", [("attention",), HYBRID, ("kda",)], ids=["attention", "hybrid", "kda"])
@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_chunks_of_any_length_equal_single_frames(stream: StreamConfig, mixers: tuple[MixerName, ...]) -> None:
    frames = [frame("a", number) for number in range(max(26, 2 * stream.window + 4))]
    expected = run(model(mixers), stream, frames, [1])
    for lengths in ((2,), (7,), (32,), (1, 5, 3)):
        assert_equal(run(model(mixers), replace(stream, run_frames=max(lengths)), frames, lengths), expected)


def test_endless_streams_take_single_frames_where_whole_pages_are_read() -> None:
    """The history ring of endless streams wraps, which a page table cannot express; with epochs it does not wrap."""
    frames = [frame("a", number) for number in range(40)]
    for stream in (StreamConfig(2, 6, history_frames=3), StreamConfig(2, 6, epoch_frames=15)):
        expected = run(model(HYBRID), stream, frames, [1])
        assert_equal(run(model(HYBRID, "paged"), replace(stream, run_frames=4), frames, [4]), expected)


def test_a_new_size_or_connection_within_a_chunk_begins_a_new_epoch_there() -> None:
    sizes = [(64, 48)] * 5 + [(64, 24)] * 5 + [(64, 48)] * 4
    frames = [frame("a", number, size, stream_epoch=number // 12) for number, size in enumerate(sizes)]
    stream = StreamConfig(2, 3)
    expected = run(model(HYBRID), stream, frames, [1])
    assert [record.epoch for record in expected] == [0] * 5 + [1] * 5 + [2] * 2 + [3] * 2
    for lengths in ((14,), (4,)):
        assert_equal(run(model(HYBRID), replace(stream, run_frames=4), frames, lengths), expected)


def test_chunks_of_several_streams_in_one_step_equal_each_alone() -> None:
    streams = {"a": StreamConfig(2, 4, run_frames=4), "b": StreamConfig(1, 5, 2, run_frames=3), "c": StreamConfig(3, 2)}
    frames = {camera: [frame(camera, number) for number in range(24)] for camera in streams}
    together: dict[str, list[Features]] = {camera: [] for camera in streams}
    with Engine(model(HYBRID)) as engine:
        for camera, stream in streams.items():
            engine.open_stream(camera, stream, ResizeMode.CROP)
        for first in range(0, 24, 4):
            step = [one for camera in streams for one in frames[camera][first : first + 4]]
            for record in good(engine.step(step)):
                together[record.stamp.camera].append(record)
    for camera, stream in streams.items():
        with Engine(model(HYBRID)) as engine:
            engine.open_stream(camera, stream, ResizeMode.CROP)
            alone = [record for one in frames[camera] for record in good(engine.step([one]))]
        assert_equal(together[camera], alone)


def test_a_chunk_needs_memory_for_its_additional_frames_only() -> None:
    def nbytes(run_frames: int) -> int:
        with Engine(CONFIG) as engine:
            engine.open_stream("a", StreamConfig(1, 4, history_frames=0, run_frames=run_frames), ResizeMode.CROP)
            engine.step([frame("a", 0)])
            return engine.statistics().streams[0].nbytes

    assert nbytes(3) * 5 == nbytes(1) * 7  # one scale frame, four of the window, and two more
    assert nbytes(9) * 5 == nbytes(1) * 8  # no more than the window


@pytest.mark.parametrize(("mixers", "sound"), [(("attention",), 2), (HYBRID, 0)], ids=["attention", "hybrid"])
def test_a_number_that_is_not_finite_affects_later_frames_of_its_chunk_and_no_later_chunk(
    mixers: tuple[MixerName, ...], sound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier frames do not attend to it, but `kda` blocks multiply it by zero for frames in its chunk of 64 tokens."""
    stream, frames = StreamConfig(1, 4, run_frames=4), [frame("a", number) for number in range(12)]
    with Engine(model(mixers)) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP)
        given = good(engine.step(frames[:5]))
        forward = engine.model_runner.model.forward

        def spoil(images: Tensor, *rest: object) -> object:
            return forward(images.index_fill(0, torch.tensor([2]), float("nan")), *rest)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(engine.model_runner.model, "forward", spoil)
            spoilt = good(engine.step(frames[5:9]))
        after = good(engine.step(frames[9:]))
    assert [Flag.NAN in record.flags for record in spoilt] == [number >= sound for number in range(4)]
    assert [(record.epoch, record.epoch_frame) for record in after] == [(1, 0), (1, 1), (1, 2)]
    assert_equal([*given, *spoilt[:sound]], run(model(mixers), stream, frames[: 5 + sound], [1]))
    for record, fresh in zip(after, run(model(mixers), stream, frames[9:], [1]), strict=True):
        assert_same(record, fresh, TOLERANCE)


def test_frames_of_a_failed_chunk_are_each_reported_and_the_next_ones_begin_a_new_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("injected")

    with Engine(model(HYBRID)) as engine:
        engine.open_stream("a", StreamConfig(1, 4, run_frames=4), ResizeMode.CROP)
        engine.step([frame("a", number) for number in range(5)])
        with monkeypatch.context() as patch:
            patch.setattr(OutputHeads, "unpack", fail)
            failed = engine.step([frame("a", number) for number in range(5, 9)])
        records = good(engine.step([frame("a", number) for number in range(9, 12)]))
    assert [outcome.stamp.source_seq for outcome in failed] == [5, 6, 7, 8]
    assert [(record.epoch, record.epoch_frame) for record in records] == [(1, 0), (1, 1), (1, 2)]
    assert Flag.RESET in records[0].flags
