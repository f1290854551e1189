"""Keyframes by motion: a camera that moves gets new ones, a camera that stands keeps its memory."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from retinad.pipeline.config import ModelConfig, OutputConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.errors import AdmissionError
from retinad.pipeline.frames import Features, Numbers, OutputKind
from retinad.pipeline.geometry.flow import DepthView, mean_flow
from retinad.pipeline.geometry.pose import Floats, intrinsics, world_from_camera
from retinad.pipeline.model.camera_head import CameraHead

from .engine_rig import STREAM, frame, good, play
from .heads_rig import HEADS, numbers

THRESHOLD_PX = 3.0
INTERVAL = 5
BY_MOTION = replace(STREAM, keyframe_interval=INTERVAL, keyframe_flow_px=THRESHOLD_PX)
STANDING = [0.0] * 24
WALK = [0.0] * 6 + [0.02 * step for step in range(10)] + [0.5] * 8
"""Where the camera is along its x axis at each frame: it stands, walks, and stands elsewhere."""


@pytest.fixture
def positions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Where the next frames' camera is; each frame that runs takes the first of them. The head is replaced."""
    left: list[float] = []

    def forward(head: CameraHead, tokens: Tensor, memory: Any) -> Tensor:
        return torch.tensor([[left.pop(0), 0, 0, 0, 0, 0, 1, 1.0, 1.2] for _ in range(len(tokens))])

    monkeypatch.setattr(CameraHead, "forward", forward)
    return left


def walked(
    positions: list[float], path: Sequence[float], stream: StreamConfig = BY_MOTION, config: ModelConfig = HEADS
) -> list[Features]:
    positions[:] = path
    with Engine(config) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP)
        return play(engine, [frame("a", number) for number in range(len(path))])


def chosen(records: Sequence[Features]) -> list[int]:
    return [number for number, record in enumerate(records) if record.keyframe]


def pose_of(record: Features) -> Floats:
    pose = world_from_camera(numbers(record, "pose/encoding"))
    assert pose is not None
    return pose


def view_of(record: Features) -> DepthView:
    matrix = intrinsics(numbers(record, "pose/encoding"), *record.model_size)
    assert matrix is not None
    depth: Numbers = numbers(record, "depth")
    return DepthView(depth.astype("float32"), 1, matrix, pose_of(record))


def expected_keyframes(records: Sequence[Features]) -> Iterator[int]:
    """The rule, from what was published: by number, or because the frame before was too far from the last keyframe."""
    last = 0
    for number, record in enumerate(records):
        first_block = number < STREAM.scale_frames
        too_far = False
        if not first_block:
            flow = mean_flow(view_of(records[last]), pose_of(records[number - 1]))
            too_far = flow is None or flow > THRESHOLD_PX
        due = number == STREAM.scale_frames or number - last == INTERVAL
        if first_block or due or too_far:
            assert record.epoch == 0
            last = number
            yield number


def test_a_standing_camera_gets_a_keyframe_every_interval_only(positions: list[float]) -> None:
    records = walked(positions, STANDING)
    assert chosen(records) == [0, 1, *range(2, 24, INTERVAL)]
    assert all(record.keyframe_flow_px == pytest.approx(0, abs=1e-9) for record in records[1:])


def test_a_walking_camera_gets_a_keyframe_where_the_image_has_moved_too_far(positions: list[float]) -> None:
    records = walked(positions, WALK)
    assert chosen(records) == list(expected_keyframes(records))
    assert len(chosen(records)) > len([0, 1, *range(2, 24, INTERVAL)])


def test_each_record_says_how_far_its_image_has_moved(positions: list[float]) -> None:
    records = walked(positions, WALK)
    last = 0
    for number, record in enumerate(records[1:], 1):
        assert record.keyframe_flow_px == pytest.approx(mean_flow(view_of(records[last]), pose_of(record)), abs=1e-6)
        last = number if record.keyframe else last


def test_keyframes_and_frames_add_up(positions: list[float]) -> None:
    positions[:] = WALK
    with Engine(HEADS) as engine:
        engine.open_stream("a", BY_MOTION, ResizeMode.CROP)
        records = play(engine, [frame("a", number) for number in range(len(WALK))])
        (counted,) = engine.statistics().streams
    assert (counted.frames, counted.keyframes) == (len(WALK), len(chosen(records)))


def test_a_keyframe_has_a_depth_even_if_maps_are_rare(positions: list[float]) -> None:
    """The next frames are compared with it."""
    config = replace(HEADS, output=replace(HEADS.output, map_every=1000))
    records = walked(positions, WALK, config=config)
    has_depth = [any(tensor.output.kind is OutputKind.DEPTH for tensor in record.tensors) for record in records]
    assert [number for number, has in enumerate(has_depth) if has] == chosen(records)
    assert chosen(records) == chosen(walked(positions, WALK))


def test_thinned_maps_choose_the_same_keyframes(positions: list[float]) -> None:
    """Flow is in pixels of the model's image, whatever part of the depth is published."""
    output: OutputConfig = replace(HEADS.output, map_stride=2)
    thinned = walked(positions, WALK, config=replace(HEADS, output=output))
    for one, other in zip(thinned[1:], walked(positions, WALK)[1:], strict=True):
        assert one.keyframe_flow_px == pytest.approx(other.keyframe_flow_px, rel=0.05, abs=1e-6)


@pytest.mark.parametrize("cut", [8, 11, 17])
def test_a_restored_stream_chooses_what_an_uninterrupted_one_chooses(
    positions: list[float], tmp_path: Path, cut: int
) -> None:
    whole, frames = walked(positions, WALK), [frame("a", number) for number in range(len(WALK))]
    positions[:] = WALK
    parts: list[Features] = []
    for part in (frames[:cut], frames[cut:]):
        with Engine(HEADS) as engine:
            engine.open_stream("a", BY_MOTION, ResizeMode.CROP)
            if parts:
                engine.load_state("a", tmp_path / "state")
            parts += play(engine, part)
            engine.save_state("a", tmp_path / "state")
    assert [(one.keyframe, one.keyframe_flow_px) for one in parts] == [
        (one.keyframe, one.keyframe_flow_px) for one in whole
    ]
    for one, other in zip(parts, whole, strict=True):
        for mine, its in zip(one.tensors, other.tensors, strict=True):
            assert (mine.data == its.data).all() or mine.name.endswith("intrinsics")


def test_a_new_epoch_measures_from_its_own_frames(positions: list[float]) -> None:
    """The replayed frames run again, with poses in the new epoch's frame of reference, here ten units away."""
    stream, replayed = replace(BY_MOTION, epoch_frames=6), STREAM.scale_frames
    positions[:] = [0.0] * 18 + [10.0] * (replayed + 6)
    with Engine(HEADS) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP)
        records = play(engine, [frame("a", number) for number in range(24)])
    assert [record.epoch for record in records] == [0] * 18 + [1] * 6
    assert all(record.keyframe_flow_px == pytest.approx(0, abs=1e-9) for record in records[1:])


def test_a_step_has_one_frame_if_each_decides_about_the_next(positions: list[float]) -> None:
    positions[:] = WALK
    with Engine(HEADS) as engine:
        engine.open_stream("a", replace(BY_MOTION, run_frames=3), ResizeMode.CROP)
        found = good(engine.step([frame("a", number) for number in range(len(WALK))]))
    assert chosen(found) == chosen(walked(positions, WALK))


@pytest.mark.parametrize("outputs", [(OutputKind.FEATURES,), (OutputKind.POSE,), (OutputKind.DEPTH,)])
def test_a_camera_without_pose_or_depth_cannot_choose_by_motion(outputs: tuple[OutputKind, ...]) -> None:
    with Engine(HEADS) as engine, pytest.raises(AdmissionError, match="follow from pose and depth"):
        engine.open_stream("a", BY_MOTION, ResizeMode.CROP, outputs=outputs)
