"""On a GPU, captured steps equal the plain network at every frame and edge, and allocate nothing that stays."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from retinad.pipeline.config import NetworkConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Flag, Frame

from .engine_rig import frame, good
from .gpu_rig import CONFIG, ERROR, NETWORKS, error
from .output_rig import heads_with_mean

pytestmark = pytest.mark.gpu

FLOAT8_ERROR = 0.05

STREAMS = {
    "a": StreamConfig(2, 3, history_frames=4),
    "b": StreamConfig(1, 4, keyframe_interval=2, history_frames=3),
    "c": StreamConfig(3, 5, epoch_frames=14),
    "d": StreamConfig(2, 6, epoch_frames=20, run_frames=4),
}


def frames_of_step(number: int) -> list[Frame]:
    """Streams join one after another, and in some steps only some of them have a frame."""
    cameras = [c for i, c in enumerate(STREAMS) if number >= 3 * i and (number + i) % 5]
    frames = [frame(camera, number, (112, 84)) for camera in cameras]
    if "d" in cameras and number % 7 == 0:
        frames += [frame("d", 1000 * number + more, (112, 84)) for more in range(3)]
    return frames


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_captured_steps_equal_plain_ones_over_all_edges(network: NetworkConfig) -> None:
    config = replace(CONFIG, network=network)
    plain = Engine(replace(config, execution="plain", attention="dense"))
    captured = Engine(replace(config, execution="captured"))
    assert (plain.description.execution, captured.description.execution) == ("plain", "captured")
    with plain, captured:
        for engine in (plain, captured):
            for camera, stream in STREAMS.items():
                engine.open_stream(camera, stream, ResizeMode.CROP)
        steps = [frames_of_step(number) for number in range(60)]
        for number, (frames, following) in enumerate(pairwise([*steps, []])):
            # The captured engine prefetches images while the previous step runs.
            outcomes = captured.step(frames, lambda running, waiting=following: captured.prepare(waiting))  # type: ignore[misc]
            for actual, expected in zip(good(outcomes), good(plain.step(frames)), strict=True):
                assert (actual.stamp, actual.epoch_frame, actual.keyframe, actual.flags) == (
                    expected.stamp,
                    expected.epoch_frame,
                    expected.keyframe,
                    expected.flags,
                )
                assert error(actual, expected) <= ERROR, (number, actual.stamp.camera)
        runner = captured.model_runner.graphs
        assert runner is not None
        assert len(runner.graphs) >= 2, "steps of several sizes were replayed"


def test_an_output_of_several_layers_is_the_same_in_captured_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinad.pipeline.engine.engine.make_heads", heads_with_mean)
    with Engine(replace(CONFIG, execution="plain", attention="dense")) as plain, Engine(CONFIG) as captured:
        for engine in (plain, captured):
            engine.open_stream("a", StreamConfig(1, 3), ResizeMode.CROP)
        for number in range(8):
            (actual,), (expected,) = (good(one.step([frame("a", number, (112, 84))])) for one in (captured, plain))
            assert [tensor.name for tensor in actual.tensors][-2:] == ["mean/tokens", "mean/count"]
            assert error(actual, expected) <= ERROR, number
        assert captured.model_runner.graphs is not None
        assert len(captured.model_runner.graphs.graphs) == 1


def test_graphs_are_captured_again_when_the_streams_memory_moves() -> None:
    with Engine(CONFIG) as engine, Engine(CONFIG) as alone:
        for one in (engine, alone):
            one.open_stream("a", StreamConfig(1, 3), ResizeMode.CROP)
        for number in range(30):
            if number == 10:
                engine.open_stream("b", StreamConfig(1, 5), ResizeMode.CROP)
            if number == 20:
                engine.close_stream("b")
            cameras = "ab" if 10 <= number < 20 else "a"
            (actual, *_) = good(engine.step([frame(camera, number, (112, 84)) for camera in cameras]))
            (expected,) = good(alone.step([frame("a", number, (112, 84))]))
            assert error(actual, expected) <= ERROR, number


def test_a_frame_that_is_not_finite_is_flagged_and_only_its_stream_is_reset() -> None:
    with Engine(replace(CONFIG, execution="captured")) as engine:
        for camera in "ab":
            engine.open_stream(camera, StreamConfig(1, 3), ResizeMode.CROP)
        for number in range(6):
            engine.step([frame(camera, number, (112, 84)) for camera in "ab"])
        state = engine.streams["a"].state
        assert state is not None
        for part in state.kept(0):
            part.fill_(float("nan"))
        flags = [record.flags for record in good(engine.step([frame(camera, 6, (112, 84)) for camera in "ab"]))]
        assert [Flag.NAN in these for these in flags] == [True, False]
        after = good(engine.step([frame(camera, 7, (112, 84)) for camera in "ab"]))
    assert [(record.epoch, Flag.NAN in record.flags) for record in after] == [(1, False), (0, False)]


def test_a_replayed_step_allocates_nothing_that_stays() -> None:
    with Engine(replace(CONFIG, execution="captured")) as engine:
        engine.open_stream("a", StreamConfig(1, 3), ResizeMode.CROP)
        for number in range(10):
            engine.step([frame("a", number, (112, 84))])
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for number in range(10, 30):
            engine.step([frame("a", number, (112, 84))])
        assert torch.cuda.memory_allocated() == before


def test_a_memory_of_float8_takes_half_and_differs_by_its_rounding() -> None:
    """3 bits of a mantissa round a number by 2.5 % on average; attention averages over many keys."""
    errors, sizes = [], []
    with Engine(CONFIG) as whole, Engine(replace(CONFIG, memory_dtype="float8_e4m3fn")) as half:
        for engine in (whole, half):
            engine.open_stream("a", StreamConfig(2, 6, history_frames=4), ResizeMode.CROP)
        for number in range(30):
            one = frame("a", number, (112, 84))
            pairs = zip(good(half.step([one])), good(whole.step([one])), strict=True)
            errors += [error(actual, expected) for actual, expected in pairs]
        sizes = [engine.statistics().streams[0].nbytes for engine in (half, whole)]
    assert 1e-4 < max(errors) <= FLOAT8_ERROR
    assert 2 * sizes[0] == sizes[1]


def test_a_stream_of_float8_continues_from_a_file_bit_for_bit(tmp_path: Path) -> None:
    config = replace(CONFIG, memory_dtype="float8_e4m3fn")
    stream = StreamConfig(2, 4, history_frames=4)
    with Engine(config) as engine, Engine(config) as resumed:
        engine.open_stream("a", stream, ResizeMode.CROP)
        for number in range(12):
            engine.step([frame("a", number, (112, 84))])
        engine.save_state("a", tmp_path / "a.safetensors")
        resumed.open_stream("a", stream, ResizeMode.CROP)
        resumed.load_state("a", tmp_path / "a.safetensors")
        for number in range(12, 18):
            one = frame("a", number, (112, 84))
            (actual,), (expected,) = good(resumed.step([one])), good(engine.step([one]))
            assert error(actual, expected) == 0
