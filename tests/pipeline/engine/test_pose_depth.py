"""Poses, depths and points as the engine publishes them; random weights."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from retinad.pipeline.cache.backends.triton import TritonBackend
from retinad.pipeline.config import CameraConfig, ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine import map_outputs
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.fused_model import FusedAggregator
from retinad.pipeline.engine.memory_estimate import estimate_memory
from retinad.pipeline.errors import AdmissionError, StateError
from retinad.pipeline.frames import Features, Flag, Frame, OutputKind
from retinad.pipeline.geometry.pose import intrinsics, world_from_camera
from retinad.pipeline.model.camera_head import CameraHead

from .engine_rig import STREAM, bad, frame, good, model_of, play
from .heads_rig import EVERY, HEADS, numbers
from .replay_rig import ReplayedOnCpu

POSE, DEPTH, FEATURES = OutputKind.POSE, OutputKind.DEPTH, OutputKind.FEATURES
ENCODING_TOLERANCE = 2e-4
"""Absolute, for encodings of about 1: rounds amplify the rounding of a product with another number of rows."""
STREAMS = (
    STREAM,
    replace(STREAM, keyframe_interval=3),
    replace(STREAM, history_frames=4),
    replace(STREAM, epoch_frames=6),
)


def run(
    frames: Sequence[Frame],
    stream: StreamConfig = STREAM,
    config: ModelConfig = HEADS,
    outputs: Sequence[OutputKind] | None = None,
) -> list[Features]:
    with Engine(config) as engine:
        engine.open_stream(frames[0].stamp.camera, stream, ResizeMode.CROP, outputs=outputs)
        return play(engine, frames)


def same_records(
    actual: Sequence[Features], expected: Sequence[Features], tolerance: float = ENCODING_TOLERANCE
) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert (one.epoch, one.epoch_frame) == (other.epoch, other.epoch_frame)
        assert [tensor.name for tensor in one.tensors] == [tensor.name for tensor in other.tensors]
        for mine, its in zip(one.tensors, other.tensors, strict=True):
            if mine.name.endswith("intrinsics"):
                continue  # a field of view near 0 gives any focal length
            # float16 rounds to 2^-11, perhaps the other way, and once more if the epoch is aligned.
            ulp = 2e-3 if tolerance and mine.output.dtype == "float16" else 0.0
            np.testing.assert_allclose(mine.data, its.data, rtol=ulp, atol=max(tolerance, ulp))


class Recomputed:
    """The camera head's memory as plain lists: all keyframes of the epoch, for a stream of single frames."""

    def __init__(self, first: int, interval: int) -> None:
        self.times = torch.zeros(first, dtype=torch.float64)
        self._first, self._interval = first, interval
        self._kept: dict[int, list[Tensor]] = {}
        self._frames = 0

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        kept = self._kept.get(layer, [key[:0], value[:0]])
        keys, values = (torch.cat(pair) for pair in zip(kept, (key, value), strict=True))
        if self.keyframe:
            self._kept[layer] = [keys, values]
        scores = torch.einsum("fphd,nphd->fphn", query, keys) / query.shape[-1] ** 0.5
        return torch.einsum("fphn,nphd->fphd", scores.softmax(-1), values)

    @property
    def keyframe(self) -> bool:
        return not self._frames or (self._frames - self._first) % self._interval == 0

    def done(self, frames: int) -> None:
        self._frames += frames


@pytest.mark.parametrize("interval", [1, 3])
@torch.inference_mode()
def test_poses_are_those_of_the_camera_head_with_all_keyframes(interval: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Tensor] = []
    forward = CameraHead.forward

    def record(head: CameraHead, tokens: Tensor, memory: Any) -> Tensor:
        given.append(tokens.clone())
        return forward(head, tokens, memory)

    monkeypatch.setattr(CameraHead, "forward", record)
    stream = replace(STREAM, keyframe_interval=interval)
    with Engine(HEADS) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP)
        found = play(engine, [frame("a", number) for number in range(9)])
        head, memory = model_of(engine).camera_head, Recomputed(stream.scale_frames, interval)
        assert head is not None
        expected = []
        for tokens in given:
            expected.append(forward(head, tokens, memory))
            memory.done(len(tokens))
    actual = np.stack([numbers(features, "pose/encoding") for features in found])
    np.testing.assert_allclose(actual, torch.cat(expected).numpy(), rtol=0, atol=1e-5)


def test_a_record_has_the_outputs_of_its_kinds() -> None:
    found = run([frame("a", number) for number in range(3)])
    names = [tensor.name for tensor in found[2].tensors if not tensor.name.startswith("layer")]
    assert names == [
        "pose/encoding",
        "pose/world_from_camera",
        "pose/intrinsics",
        "pose/source_intrinsics",
        "depth",
        "depth_confidence",
        "points",
        "points_confidence",
    ]
    width, height = found[2].model_size
    assert numbers(found[2], "depth").shape == (height, width)
    assert numbers(found[2], "points").shape == (height, width, 3)
    assert (numbers(found[2], "depth") > 0).all()
    assert (numbers(found[2], "depth_confidence") >= 1).all()
    assert found[2].geometry is not None
    assert found[2].geometry.unit == "stream"


def test_matrices_follow_from_the_encoding() -> None:
    features = run([frame("a", number) for number in range(3)])[2]
    encoding = numbers(features, "pose/encoding")
    pose, camera = world_from_camera(encoding), intrinsics(encoding, *features.model_size)
    assert pose is not None
    np.testing.assert_allclose(numbers(features, "pose/world_from_camera"), pose, rtol=0, atol=1e-6)
    if camera is None:
        assert np.isnan(numbers(features, "pose/intrinsics")).all()
    else:
        np.testing.assert_allclose(numbers(features, "pose/intrinsics"), camera, rtol=1e-6)
        scale = 64 / features.model_size[0]
        source = numbers(features, "pose/source_intrinsics")
        np.testing.assert_allclose(source[0, 0], camera[0, 0] * scale, rtol=1e-5)


@pytest.mark.parametrize("stream", STREAMS)
def test_streams_of_any_age_get_the_numbers_of_each_alone(stream: StreamConfig) -> None:
    cameras = {"a": 0, "b": 2, "c": 5}
    found: dict[str, list[Features]] = {camera: [] for camera in cameras}
    with Engine(HEADS) as engine:
        for camera in cameras:
            engine.open_stream(camera, stream, ResizeMode.CROP)
        for step in range(14):
            frames = [frame(camera, step - start) for camera, start in cameras.items() if step >= start]
            for features in good(engine.step(frames)):
                found[features.stamp.camera].append(features)
    for camera, start in cameras.items():
        same_records(found[camera], run([frame(camera, number) for number in range(14 - start)], stream))


@pytest.mark.parametrize("stream", STREAMS)
def test_many_frames_a_step_give_the_numbers_of_one_by_one(stream: StreamConfig) -> None:
    frames = [frame("a", number) for number in range(13)]
    with Engine(HEADS) as engine:
        engine.open_stream("a", replace(stream, run_frames=3), ResizeMode.CROP)
        found = [features for at in range(0, 13, 4) for features in good(engine.step(frames[at : at + 4]))]
    same_records(found, run(frames, stream))


@pytest.mark.parametrize("capture", [False, True])
def test_fused_and_captured_steps_give_the_numbers_of_plain_ones(capture: bool) -> None:
    config = replace(HEADS, attention="dense", dtype="bfloat16")
    frames = [[frame(camera, number) for camera in ("a", "b")] for number in range(7)]
    wanted = {"a": (POSE, DEPTH), "b": EVERY}
    records: list[list[Features]] = []
    for fused in (False, True):
        with Engine(config) as engine:
            if fused:
                engine.model_runner.backend = TritonBackend()
                runner = ReplayedOnCpu(
                    FusedAggregator(model_of(engine)), engine.pool, engine.pose_pool, engine.model_runner.heads
                )
                runner._capture = capture
                engine.model_runner.graphs = runner
            for camera, outputs in wanted.items():
                engine.open_stream(camera, STREAM, ResizeMode.CROP, outputs=outputs)
            records.append([features for step in frames for features in good(engine.step(step))])
            if fused:
                assert (runner.replays > 0) == capture
    # Plain steps also round to bfloat16 between operations that are fused: by 2^-9 of numbers of about 3.
    same_records(records[1], records[0], tolerance=0.1)


def test_a_camera_publishes_what_it_asks_for_and_the_others_notice_nothing() -> None:
    everything = run([frame("a", number) for number in range(5)])
    with Engine(HEADS) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP)
        engine.open_stream("b", STREAM, ResizeMode.CROP, outputs=(FEATURES,))
        engine.open_stream("c", STREAM, ResizeMode.CROP, outputs=(POSE,))
        found: dict[str, list[Features]] = {"a": [], "b": [], "c": []}
        for number in range(5):
            for features in good(engine.step([frame(camera, number) for camera in found])):
                found[features.stamp.camera].append(features)
        assert engine.streams["b"].poses is None
    same_records(found["a"], everything)
    assert all(tensor.name.startswith("layer") for tensor in found["b"][4].tensors)
    assert found["b"][4].geometry is None
    assert all(tensor.name.startswith("pose/") for tensor in found["c"][4].tensors)


def test_heads_that_nobody_asked_for_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the camera head ran")

    monkeypatch.setattr(CameraHead, "forward", refuse)
    found = run([frame("a", number) for number in range(3)], outputs=(FEATURES, DEPTH))
    assert len(found) == 3


def test_features_do_not_change_when_heads_run_beside_them() -> None:
    frames = [frame("a", number) for number in range(4)]
    plain = replace(HEADS, outputs=(FEATURES,))
    for one, other in zip(run(frames), run(frames, config=plain), strict=True):
        for tensor in other.tensors:
            np.testing.assert_array_equal(numbers(one, tensor.name), tensor.data)


def test_an_output_that_the_model_does_not_have_is_refused() -> None:
    config = replace(HEADS, outputs=(FEATURES, POSE))
    with Engine(config) as engine, pytest.raises(AdmissionError, match="some of the model's outputs"):
        engine.open_stream("a", STREAM, ResizeMode.CROP, outputs=(DEPTH,))


def test_maps_come_for_every_nth_frame_of_an_epoch() -> None:
    config = replace(HEADS, output=replace(HEADS.output, map_every=3))
    found = run([frame("a", number) for number in range(8)], config=config)
    assert ["depth" in [tensor.name for tensor in features.tensors] for features in found] == [
        features.epoch_frame % 3 == 0 for features in found
    ]


def test_a_stride_takes_every_nth_pixel_and_unsure_pixels_are_nan() -> None:
    frames = [frame("a", number) for number in range(3)]
    whole = run(frames)[2]
    depth, confidence = numbers(whole, "depth"), numbers(whole, "depth_confidence")
    cut = float(np.median(confidence))
    config = replace(HEADS, output=replace(HEADS.output, map_stride=3, min_confidence=cut))
    found = run(frames, config=config)[2]
    part = numbers(found, "depth_confidence")
    np.testing.assert_array_equal(part, confidence[::3, ::3])
    sure = part > cut
    assert 0 < sure.sum() < sure.size
    np.testing.assert_array_equal(numbers(found, "depth")[sure], depth[::3, ::3][sure])
    assert np.isnan(numbers(found, "depth")[part < cut - 1e-2]).all()
    assert found.geometry is not None
    assert found.geometry.map_stride == 3


def test_a_pose_that_is_not_finite_is_flagged_and_the_memory_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(HEADS) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP)
        play(engine, [frame("a", number) for number in range(4)])
        with monkeypatch.context() as patch:
            patch.setattr(CameraHead, "forward", lambda *_: torch.full((1, 9), torch.nan))
            (spoilt,) = good(engine.step([frame("a", 4)]))
        assert Flag.NAN in spoilt.flags
        after = play(engine, [frame("a", number) for number in range(5, 8)])
    same = run([frame("a", number) for number in range(5, 8)])
    for one, other in zip(after, same, strict=True):
        np.testing.assert_allclose(
            numbers(one, "pose/encoding"), numbers(other, "pose/encoding"), rtol=0, atol=ENCODING_TOLERANCE
        )


def test_a_failed_step_empties_the_poses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("injected")

    with Engine(HEADS) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP)
        play(engine, [frame("a", number) for number in range(4)])
        with monkeypatch.context() as patch:
            patch.setattr(CameraHead, "forward", fail)
            assert bad(engine.step([frame("a", 4)]))
        poses = engine.streams["a"].poses
        assert poses is not None
        assert poses.window.committed == 0


def test_the_memory_of_poses_is_constant_and_freed() -> None:
    with Engine(HEADS) as engine:
        engine.open_stream("a", replace(STREAM, epoch_frames=6), ResizeMode.CROP)
        play(engine, [frame("a", number) for number in range(3)])
        at_first = engine.pose_pool.nbytes
        play(engine, [frame("a", number) for number in range(3, 40)])
        assert engine.pose_pool.nbytes == at_first > 0
        engine.close_stream("a")
        assert engine.pose_pool.nbytes == 0


@pytest.mark.parametrize("stream", STREAMS)
def test_the_memory_of_poses_is_what_the_estimate_says(stream: StreamConfig) -> None:
    camera = CameraConfig("a", "synthetic:", stream=stream)
    (estimate,) = estimate_memory(HEADS, [camera], [(64, 48)]).cameras
    with Engine(HEADS) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP)
        play(engine, [frame("a", number) for number in range(3)])
        assert engine.streams["a"].poses is not None
        assert engine.streams["a"].poses.nbytes == estimate.pose_bytes
        (counted,) = engine.statistics().streams
    assert counted.nbytes == estimate.cache_bytes + estimate.pose_bytes
    (without,) = estimate_memory(HEADS, [replace(camera, outputs=(DEPTH,))], [(64, 48)]).cameras
    assert without.pose_bytes == 0


def test_maps_are_the_same_however_many_frames_are_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, frames = replace(STREAM, scale_frames=5), [frame("a", number) for number in range(5)]
    found = run(frames, stream)
    assert len({numbers(features, "depth").tobytes() for features in found}) == 5
    for count in (1, 5):
        monkeypatch.setattr(map_outputs, "FRAMES_AT_ONCE", count)
        same_records(run(frames, stream), found)


def test_cameras_that_want_the_same_are_neighbours_in_a_batch() -> None:
    """A captured graph serves one order of what is wanted, so the order of arrival must not matter."""
    kinds: list[object] = []
    with Engine(HEADS) as engine:
        run_forward = engine.model_runner._forward

        def record(images: Any, step: Any, shape: Any, wanted: Any, poses: Any) -> Any:
            kinds.append(wanted)
            return run_forward(images, step, shape, wanted, poses)

        engine.model_runner._forward = record  # type: ignore[method-assign]
        for camera, outputs in (("a", (FEATURES,)), ("b", EVERY), ("c", (FEATURES,))):
            engine.open_stream(camera, replace(STREAM, scale_frames=1), ResizeMode.CROP, outputs=outputs)
        for order in ("abc", "cba", "bca"):
            good(engine.step([frame(camera, len(kinds)) for camera in order]))
    assert len(kinds) == 3
    assert len(set(kinds)) == 1


@pytest.mark.parametrize("stream", STREAMS)
def test_a_restored_stream_continues_with_the_same_poses(stream: StreamConfig, tmp_path: Path) -> None:
    frames = [frame("a", number) for number in range(12)]
    with Engine(HEADS) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP)
        play(engine, frames[:5])
        engine.save_state("a", tmp_path / "a.safetensors")
        expected = play(engine, frames[5:])
    with Engine(HEADS) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP)
        engine.load_state("a", tmp_path / "a.safetensors")
        same_records(play(engine, frames[5:]), expected, tolerance=0.0)


def test_a_file_without_poses_is_refused_by_a_camera_that_publishes_them(tmp_path: Path) -> None:
    with Engine(HEADS) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP, outputs=(FEATURES,))
        play(engine, [frame("a", number) for number in range(3)])
        engine.save_state("a", tmp_path / "a.safetensors")
        engine.open_stream("b", STREAM, ResizeMode.CROP)
        with pytest.raises(StateError, match="holds no memory of poses"):
            engine.load_state("b", tmp_path / "a.safetensors")
