"""HorizonStream in the engine: the same streams, batches, epochs and state files as for the other networks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from retinad.pipeline.cache.backends.dense import DenseBackend
from retinad.pipeline.cache.step import Step
from retinad.pipeline.cache.stream_cache import StreamState
from retinad.pipeline.cache.window import CacheLayout, StreamWindow
from retinad.pipeline.config import DType, ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.admission import pool_shape
from retinad.pipeline.engine.batch_size import BLOCK_BYTES, step_bytes
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.token_shape import TokenShape
from retinad.pipeline.errors import AdmissionError, ModelError, StateError
from retinad.pipeline.frames import Features, Flag, Frame, OutputKind, TokenGroup
from retinad.pipeline.geometry.online_poses import OnlinePoses
from retinad.pipeline.geometry.pose import world_from_camera
from retinad.pipeline.model.dense_head import depth_of
from retinad.pipeline.model.horizon_heads import in_metres, metric_scale, window_poses
from retinad.pipeline.model.horizon_stream import HorizonStream
from retinad.pipeline.model.network import FrameNumbers, LayerOutput
from retinad.pipeline.model.presets import HORIZON_STREAM

from .engine_rig import CONFIG, bad, frame, good, play
from .heads_rig import numbers
from .horizon_rig import HORIZON, STREAM, WINDOW

TOLERANCE = 5e-4
"""Absolute, on outputs of about 1: rounds of the camera head amplify the rounding of another number of rows, and the
median of rotations stops at 1e-5."""


def frames_of(camera: str, count: int, **options: Any) -> list[Frame]:
    return [frame(camera, number, **options) for number in range(count)]


def run(frames: Sequence[Frame], stream: StreamConfig = STREAM, config: ModelConfig = HORIZON) -> list[Features]:
    camera = frames[0].stamp.camera
    with Engine(config) as engine:
        engine.open_stream(camera, stream, ResizeMode.CROP)
        return [*play(engine, frames), *good(engine.flush(camera))]


def same(actual: Sequence[Features], expected: Sequence[Features], tolerance: float = TOLERANCE) -> None:
    assert [(one.epoch, one.epoch_frame) for one in actual] == [(one.epoch, one.epoch_frame) for one in expected]
    for one, other in zip(actual, expected, strict=True):
        assert [tensor.name for tensor in one.tensors] == [tensor.name for tensor in other.tensors]
        assert one.geometry == other.geometry
        for mine, its in zip(one.tensors, other.tensors, strict=True):
            if mine.name.endswith("intrinsics"):
                continue  # a field of view near 0 gives any focal length
            ulp = 2e-3 if tolerance and mine.output.dtype == "float16" else 0.0
            np.testing.assert_allclose(mine.data, its.data, rtol=ulp, atol=max(tolerance, ulp), err_msg=mine.name)


def network_of(engine: Engine) -> HorizonStream:
    model = engine.model_runner.model
    assert isinstance(model, HorizonStream)
    return model


class Alone:
    """The network by itself, with one stream."""

    def __init__(self, engine: Engine) -> None:
        self.model, self._engine = network_of(engine), engine
        config = self.model.network
        layout = CacheLayout.window_alone(STREAM, 1 + 3 * 4, config.slot_tokens)
        self._state = StreamState.allocate(engine.pool, StreamWindow(layout))

    def step(self, images: torch.Tensor) -> tuple[LayerOutput, ...]:
        with Step([self._state], [len(images)], DenseBackend()) as step:
            planned = step.plans[0].frames
            given = FrameNumbers(
                times=tuple(one.number for one in planned),
                first=(False,) * len(planned),
                scale=(False,) * len(planned),
                later=tuple(one.later for one in planned),
                windows=tuple(len(one.window) for one in planned),
            )
            layers = self.model(images, given, step, (0, 1, 2, 3))
            step.commit()
        return tuple(layers)


@torch.inference_mode()
def test_records_hold_what_the_network_makes_of_the_frames() -> None:
    frames = frames_of("a", 9)
    found = run(frames)
    assert len(found) == 9
    with Engine(HORIZON) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP)
        alone, online, poses = Alone(engine), OnlinePoses(WINDOW), []
        geometry = engine._stepper._geometry_of((64, 48), ResizeMode.CROP)
        images = torch.stack([engine.preprocessor.make(one.pixels, geometry) for one in frames])
        model, done = alone.model, 0
        assert model.camera_head is not None
        assert model.depth_head is not None
        assert model.scale_head is not None
        for part in (images[:WINDOW], *(images[n : n + 1] for n in range(WINDOW, len(images)))):
            layers = alone.step(part)
            last = layers[-1]
            assert last.slots is not None
            scale = metric_scale(model.scale_head, last)
            rows = in_metres(window_poses(model.camera_head, last.slots), scale).numpy()
            poses += online.first_step(rows[-1]) if not done else [online.add(rows[0])]
            tokens = [torch.cat(layer.parts, dim=-1) for layer in layers]
            values, _ = model.depth_head([layer[:, 1:] for layer in tokens], (3, 4), (56, 42))
            depth = (depth_of(values) * scale[:, None, None]).numpy()
            for index in range(len(part)):
                record = found[done + index]
                np.testing.assert_allclose(numbers(record, "layer3/scale")[0], tokens[3][index, 0], atol=1e-5)
                patches = numbers(record, "layer0/patch").reshape(12, 64)
                np.testing.assert_allclose(patches, tokens[0][index, 1:], atol=1e-5)
                np.testing.assert_allclose(numbers(record, "depth"), depth[index], rtol=2e-3)
            done += len(part)
    for record, pose in zip(found, poses, strict=True):
        assert pose is not None
        np.testing.assert_allclose(numbers(record, "pose/world_from_camera"), pose, atol=TOLERANCE)
        again = world_from_camera(numbers(record, "pose/encoding"))
        assert again is not None
        np.testing.assert_allclose(again, pose, atol=TOLERANCE)


def test_the_first_window_comes_at_once_and_the_first_camera_is_the_world() -> None:
    with Engine(HORIZON) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP)
        counts, records = [], []
        for one in frames_of("a", 5):
            found = good(engine.step([one]))
            counts.append(len(found))
            records += found
    assert counts == [0, 0, 3, 1, 1]
    assert [Flag.WARMUP in record.flags for record in records] == [True] * 3 + [False] * 2
    np.testing.assert_allclose(numbers(records[0], "pose/world_from_camera"), np.eye(3, 4), atol=1e-6)
    for record in records:
        assert record.geometry is not None
        assert record.geometry.unit == "metre"
        assert np.isfinite(numbers(record, "pose/world_from_camera")).all()


def test_streams_of_any_age_in_one_step_equal_each_alone() -> None:
    """Images have two sizes, and one stream's window is longer."""
    settings = {"a": STREAM, "b": STREAM, "c": replace(STREAM, window=4, scale_frames=4), "d": STREAM}
    frames = {camera: frames_of(camera, 9, size=(64, 64) if camera == "d" else (64, 48)) for camera in settings}
    found: dict[str, list[Features]] = {camera: [] for camera in settings}
    with Engine(replace(HORIZON, max_batch=4)) as engine:
        for camera, stream in settings.items():
            engine.open_stream(camera, stream, ResizeMode.CROP)
        for turn in range(15):
            joined = [camera for index, camera in enumerate(settings) if 0 <= turn - 2 * index < 9]
            for record in good(
                engine.step([frames[camera][turn - 2 * list(settings).index(camera)] for camera in joined])
            ):
                found[record.stamp.camera].append(record)
    for camera, stream in settings.items():
        same(found[camera], run(frames[camera], stream))


def test_many_frames_a_step_equal_one_by_one() -> None:
    frames = frames_of("a", 14)
    one_by_one = run(frames)
    with Engine(HORIZON) as engine:
        engine.open_stream("a", replace(STREAM, run_frames=3), ResizeMode.CROP)
        found = [*good(engine.step(frames[:8])), *good(engine.step(frames[8:]))]
    same(found, one_by_one)


@pytest.mark.parametrize("window", [1, WINDOW])
@pytest.mark.parametrize("size", [(64, 48), (64, 64)])
def test_a_stream_of_a_single_frame_and_square_images_work(window: int, size: tuple[int, int]) -> None:
    (record,) = run(frames_of("a", 1, size=size), replace(STREAM, window=window, scale_frames=window))
    np.testing.assert_allclose(numbers(record, "pose/world_from_camera"), np.eye(3, 4), atol=1e-6)
    assert np.isfinite(numbers(record, "depth")).all()


def test_a_stream_continues_after_a_first_step_with_fewer_frames() -> None:
    """The window then grows from step to step, whatever `run_frames` is."""
    frames = frames_of("a", 8)
    found = []
    for run_frames in (1, 3):
        with Engine(HORIZON) as engine:
            engine.open_stream("a", replace(STREAM, run_frames=run_frames), ResizeMode.CROP)
            assert not engine.step(frames[:1])
            records = good(engine.flush("a"))
            found.append([*records, *good(engine.step(frames[1:]))])
    same(found[1], found[0])
    assert [record.context.frames for record in found[0] if record.context is not None] == [1, 2, 3, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("epoch_frames", [0, 6])
def test_a_stream_restored_from_a_file_continues_its_trajectory(tmp_path: Path, epoch_frames: int) -> None:
    stream, frames = replace(STREAM, epoch_frames=epoch_frames), frames_of("a", 12)
    whole = run(frames, stream)
    with Engine(HORIZON) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP)
        before = play(engine, frames[:7])
        engine.save_state("a", tmp_path / "a.state")
    with Engine(HORIZON) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP)
        engine.load_state("a", tmp_path / "a.state")
        after = play(engine, frames[7:])
    same([*before, *after], whole, tolerance=0)


def test_a_file_without_poses_is_not_for_a_stream_that_publishes_them(tmp_path: Path) -> None:
    with Engine(HORIZON) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP, outputs=(OutputKind.DEPTH,))
        play(engine, frames_of("a", 4))
        engine.save_state("a", tmp_path / "a.state")
        engine.close_stream("a")
        engine.open_stream("a", STREAM, ResizeMode.CROP)
        with pytest.raises(StateError, match="holds no poses"):
            engine.load_state("a", tmp_path / "a.state")


@pytest.mark.parametrize("carry_state", [False, True])
def test_a_new_epoch_continues_the_trajectory(carry_state: bool) -> None:
    """Its first window runs again, and is aligned to what was published before."""
    found = run(frames_of("a", 12), replace(STREAM, epoch_frames=6, carry_state=carry_state))
    assert [record.epoch for record in found] == [0] * 6 + [1] * 3 + [2] * 3
    assert {record.geometry.world_epoch for record in found if record.geometry is not None} == {0}
    assert all(np.isfinite(numbers(record, "pose/world_from_camera")).all() for record in found)


def test_a_frame_that_is_not_finite_ends_the_trajectory() -> None:
    with Engine(HORIZON) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP)
        play(engine, frames_of("a", 5))
        head = network_of(engine).camera_head
        assert head is not None
        head.empty_pose_tokens.fill_(torch.nan)
        (spoilt,) = good(engine.step([frame("a", 5)]))
        assert Flag.NAN in spoilt.flags
        assert np.isnan(numbers(spoilt, "pose/world_from_camera")).all()
        head.empty_pose_tokens.fill_(0.5)
        later = play(engine, [frame("a", number) for number in range(6, 10)])
    assert [record.epoch for record in later] == [1] * 4
    assert later[0].geometry is not None
    assert later[0].geometry.world_epoch == 1
    np.testing.assert_allclose(numbers(later[0], "pose/world_from_camera"), np.eye(3, 4), atol=1e-6)


def test_the_memory_of_a_stream_is_constant() -> None:
    with Engine(HORIZON) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP)
        play(engine, frames_of("a", WINDOW))
        state = engine.streams["a"].state
        assert state is not None
        before = engine.pool.nbytes, engine.pose_pool.nbytes, engine.pool.version
        play(engine, [frame("a", number) for number in range(WINDOW, 60)])
        assert (engine.pool.nbytes, engine.pose_pool.nbytes, engine.pool.version) == before
        assert engine.pose_pool.nbytes == 0
        assert state.window.committed == 60
        assert len(engine.streams["a"].online.recent) == WINDOW - 1


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 4e-2), ("float16", 6e-3)])
def test_other_number_formats_differ_by_rounding_alone(dtype: DType, most: float) -> None:
    """Relative to the norm, of tokens after 8 blocks: a unit in the last place is 8e-3 and 1e-3, and errors add up."""
    frames = frames_of("a", 7)
    exact, rounded = run(frames), run(frames, config=replace(HORIZON, dtype=dtype))
    for one, other in zip(rounded, exact, strict=True):
        for name in ("layer3/scale", "layer3/patch", "layer0/patch"):
            mine, its = numbers(one, name), numbers(other, name)
            assert np.linalg.norm(mine - its) <= most * np.linalg.norm(its), name
        assert np.isfinite(numbers(one, "pose/world_from_camera")).all()


def test_the_warm_up_runs() -> None:
    with Engine(HORIZON) as engine:
        engine.warm_up([(64, 48), (64, 64)])
        assert engine.load_times.frame_s > 0


@pytest.mark.parametrize("change", [{"scale_frames": 2}, {"keyframe_interval": 2}, {"history_frames": 8}])
def test_stream_settings_that_the_network_cannot_follow_are_refused(change: dict[str, Any]) -> None:
    with Engine(HORIZON) as engine, pytest.raises(AdmissionError, match=f"camera 'a': {next(iter(change))} must be"):
        engine.open_stream("a", replace(STREAM, **change), ResizeMode.CROP)


def test_outputs_and_execution_that_the_network_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="no point head"):
        Engine(replace(HORIZON, outputs=(OutputKind.POINTS,)))
    with pytest.raises(ValueError, match="no camera and register tokens"):
        Engine(replace(HORIZON, output=replace(HORIZON.output, tokens=(TokenGroup.CAMERA,))))
    with pytest.raises(ModelError, match="paged does not support HorizonStream"):
        Engine(replace(HORIZON, attention="paged"))
    with pytest.raises(ModelError, match="HorizonStream's network has no fused kernels"):
        Engine(replace(HORIZON, execution="fused"))


@pytest.mark.parametrize(
    ("dtype", "grid", "expected"),
    [
        ("float32", (27, 37), 3_538_944_000),
        ("bfloat16", (27, 37), 1_769_472_000),
        ("float32", (21, 37), 2_753_298_432),
        ("bfloat16", (21, 37), 1_376_649_216),
    ],
)
def test_the_full_size_networks_stream_takes_what_the_specification_says(
    dtype: DType, grid: tuple[int, int], expected: int
) -> None:
    """The keys and values of 9 frames for a window of 10, and the states of four delta blocks."""
    model = ModelConfig(HORIZON_STREAM.name, HORIZON_STREAM.network, dtype=dtype)
    layout = TokenShape.of(model.network, grid).layout(HORIZON_STREAM.stream)
    inputs = 4 * 3 * 3072 * (4 if dtype == "float32" else 2)
    assert pool_shape(model).bytes_of(layout) == expected + 4 * 16 * 64 * 64 * 4 + inputs


def test_the_memory_of_a_step_counts_the_tokens_of_the_window() -> None:
    shape = TokenShape.of(HORIZON.network, (3, 4))
    added = step_bytes(HORIZON, shape.seeing(10)) - step_bytes(HORIZON, shape)
    assert added >= 10 * 4 * 32 * BLOCK_BYTES
    assert shape.seeing(10).row_tokens == 1 + 12 + 40
    assert TokenShape.of(CONFIG.network, (3, 4)).seeing(10) == TokenShape.of(CONFIG.network, (3, 4))


def test_a_frame_too_thin_fails_alone() -> None:
    with Engine(HORIZON) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP)
        play(engine, frames_of("a", 3))
        (failure,) = bad(engine.step([frame("a", 3, size=(640, 2))]))
        assert "too thin" in failure.reason
        assert len(play(engine, [frame("a", 4)])) == 1
