"""A picture is located from what a stream remembers, and the stream does not notice. Random weights."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retinad.pipeline.cache.backends.triton import TritonBackend
from retinad.pipeline.config import ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.fused_model import FusedAggregator
from retinad.pipeline.engine.query import QueryRunner
from retinad.pipeline.errors import QueryError
from retinad.pipeline.frames import Features, Frame, OutputKind

from .engine_rig import STREAM, bad, frame, good, model_of, play
from .heads_rig import HEADS, numbers
from .replay_rig import ReplayedOnCpu

HYBRID = replace(HEADS, network=replace(HEADS.network, mixers=("kda", "attention")))
TOLERANCE = 2e-4
"""Absolute, for poses of about 1: keys are summed in another order, since the picture's own lie elsewhere, and the
camera head's rounds amplify the rounding. Depths are float16, which rounds to 2^-11."""
RARE = replace(STREAM, keyframe_interval=100)
STREAMS = (
    STREAM,
    replace(STREAM, keyframe_interval=3),
    replace(STREAM, history_frames=4),
    replace(STREAM, epoch_frames=6),
    replace(STREAM, run_frames=3),
)


def walk(engine: Engine, frames: Sequence[Frame], asked: Sequence[Frame] = ()) -> list[Features]:
    """Play the frames, and ask for the given pictures after each one once there is a memory."""
    records: list[Features] = []
    for number, one in enumerate(frames):
        records += play(engine, [one])
        if number >= STREAM.scale_frames - 1:
            for picture in asked:
                engine.locate(one.stamp.camera, picture.pixels)
    return records


def open_engine(config: ModelConfig = HEADS, stream: StreamConfig = STREAM) -> Engine:
    engine = Engine(config)
    engine.open_stream("a", stream, ResizeMode.CROP)
    return engine


def assert_identical(actual: Sequence[Features], expected: Sequence[Features]) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert (one.epoch, one.epoch_frame, one.keyframe, one.context) == (
            other.epoch,
            other.epoch_frame,
            other.keyframe,
            other.context,
        )
        for mine, its in zip(one.tensors, other.tensors, strict=True):
            np.testing.assert_array_equal(mine.data, its.data)


@pytest.mark.parametrize("config", [HEADS, HYBRID], ids=["attention", "hybrid"])
@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_does_not_notice_queries(config: ModelConfig, stream: StreamConfig) -> None:
    """Bit for bit: its records are those of a stream that nobody asked."""
    frames, pictures = [frame("a", number) for number in range(14)], [frame("x", 0), frame("x", 1, size=(40, 90))]
    with open_engine(config, stream) as engine:
        found = walk(engine, frames, pictures)
    with open_engine(config, stream) as engine:
        assert_identical(found, walk(engine, frames))


@pytest.mark.parametrize("config", [HEADS, HYBRID], ids=["attention", "hybrid"])
@pytest.mark.parametrize(
    "stream",
    [RARE, replace(RARE, keyframe_interval=4, epoch_frames=5), replace(RARE, keyframe_interval=2, epoch_frames=6)],
)
def test_the_answer_is_what_the_stream_would_say_of_a_frame_that_it_does_not_keep(
    config: ModelConfig, stream: StreamConfig
) -> None:
    asked = 0
    with open_engine(config, stream) as engine:
        play(engine, [frame("a", number) for number in range(3)])
        for number in range(3, 14):
            picture = frame("a", number)
            answer = engine.locate("a", picture.pixels)
            (record,) = play(engine, [picture])
            if not record.keyframe and record.epoch == answer.epoch:
                asked += 1
                assert answer.context == record.context
                assert answer.geometry == record.geometry
                for tensor in answer.tensors:
                    if "intrinsics" not in tensor.name:  # a field of view near 0 gives any focal length
                        np.testing.assert_allclose(tensor.data, numbers(record, tensor.name), rtol=2e-3, atol=TOLERANCE)
    assert asked > 3


def test_an_answer_has_pose_and_depth_but_no_features() -> None:
    with open_engine() as engine:
        play(engine, [frame("a", number) for number in range(4)])
        answer = engine.locate("a", frame("x", 0).pixels)
    names = {tensor.name for tensor in answer.tensors}
    assert {"pose/encoding", "pose/world_from_camera", "pose/source_intrinsics", "depth", "depth_confidence"} <= names
    assert not any(name.startswith(("layer", "points")) for name in names)
    assert not answer.keyframe
    assert answer.stamp.camera == "a"


@pytest.mark.parametrize(("size", "part"), [((64, 48), (64, 48)), ((200, 48), (64, 48)), ((64, 480), (64, 48))])
def test_the_middle_of_a_picture_of_another_shape_is_used(size: tuple[int, int], part: tuple[int, int]) -> None:
    picture = frame("x", 0, size=size).pixels
    left, top = (size[0] - part[0]) // 2, (size[1] - part[1]) // 2
    middle = np.ascontiguousarray(picture[top : top + part[1], left : left + part[0]])
    with open_engine() as engine:
        play(engine, [frame("a", number) for number in range(4)])
        answer, same = engine.locate("a", picture), engine.locate("a", middle)
    for mine, its in zip(answer.tensors, same.tensors, strict=True):
        if mine.name != "pose/source_intrinsics":
            np.testing.assert_array_equal(mine.data, its.data)
    (_, _, x), (_, _, y) = answer.to_source
    (_, _, x_middle), (_, _, y_middle) = same.to_source
    assert (x - x_middle, y - y_middle) == (left, top)
    assert answer.stamp.captured_size == size


def test_padded_streams_take_pictures_of_any_shape() -> None:
    with Engine(HEADS) as engine:
        engine.open_stream("a", STREAM, ResizeMode.PAD)
        play(engine, [frame("a", number) for number in range(4)])
        answer = engine.locate("a", frame("x", 0, size=(30, 90)).pixels)
    assert answer.stamp.crop is None


@pytest.mark.parametrize("capture", [False, True])
def test_fused_and_captured_queries_leave_the_stream_as_it_was(capture: bool) -> None:
    config = replace(HEADS, attention="dense", dtype="bfloat16")
    frames = [frame("a", number) for number in range(9)]
    records: list[list[Features]] = []
    for asked in ((), (frame("x", 0), frame("x", 1))):
        with open_engine(config) as engine:
            engine.model_runner.backend = TritonBackend()
            runner = ReplayedOnCpu(
                FusedAggregator(model_of(engine)), engine.pool, engine.pose_pool, engine.model_runner.heads
            )
            runner._capture = capture
            engine.model_runner.graphs = runner
            records.append(walk(engine, frames, asked))
    assert_identical(records[1], records[0])


def test_queries_take_memory_for_one_frame_however_many_there_are() -> None:
    with open_engine() as engine:
        play(engine, [frame("a", number) for number in range(4)])
        before = engine.pool.nbytes
        engine.locate("a", frame("x", 0).pixels)
        first = engine.pool.nbytes
        for number in range(20):
            engine.locate("a", frame("x", number).pixels)
        assert engine.streams["a"].state is not None
        page = engine.streams["a"].state.window.layout.frame_tokens * engine.pool.shape.token_bytes
        assert first - before == page
        assert engine.pool.nbytes == first
        engine.pool.check_integrity()
        engine.close_stream("a")
        assert engine.pool.nbytes == engine.pose_pool.nbytes == 0


def test_streams_of_other_sizes_are_asked_in_turn() -> None:
    with Engine(HEADS) as engine:
        for camera, size in (("a", (64, 48)), ("b", (64, 30))):
            engine.open_stream(camera, STREAM, ResizeMode.CROP)
            play(engine, [frame(camera, number, size=size) for number in range(4)])
        first = [engine.locate(camera, frame("x", 0).pixels) for camera in "ab"]
        again = [engine.locate(camera, frame("x", 0).pixels) for camera in "ab"]
        assert_identical(first, again)
        assert first[0].model_size != first[1].model_size


def test_what_cannot_be_answered_is_an_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = frame("x", 0).pixels
    with open_engine() as engine:
        with pytest.raises(QueryError, match=r"no camera with a stream is named 'b'; there are a"):
            engine.locate("b", picture)
        with pytest.raises(QueryError, match="remembers nothing yet"):
            engine.locate("a", picture)
        engine.open_stream("c", STREAM, ResizeMode.CROP, outputs=(OutputKind.FEATURES,))
        play(engine, [frame(camera, number) for camera in "ac" for number in range(4)])
        with pytest.raises(QueryError, match="publishes no poses"):
            engine.locate("c", picture)
        with pytest.raises(QueryError, match="cannot be fitted"):
            engine.locate("a", picture[:0])

        def fail(*_: Any) -> Any:
            raise RuntimeError("injected")

        with monkeypatch.context() as patch:
            patch.setattr(QueryRunner, "locate", fail)
            with pytest.raises(QueryError, match="could not be run: injected"):
                engine.locate("a", picture)
        assert not bad(engine.step([frame("a", 4)]))


def test_a_query_that_fails_halfway_leaves_the_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [frame("a", number) for number in range(8)]
    with open_engine() as engine:
        records = play(engine, frames[:5])
        gather = engine.model_runner.heads.gather

        def fail(*arguments: Any) -> Any:
            list(gather(*arguments))
            raise RuntimeError("injected")

        with monkeypatch.context() as patch:
            patch.setattr(engine.model_runner.heads, "gather", fail)
            with pytest.raises(QueryError):
                engine.locate("a", frames[5].pixels)
        records += play(engine, frames[5:])
    with open_engine() as engine:
        assert_identical(records, good([outcome for one in frames for outcome in engine.step([one])]))
