"""Poses and depths stay in one frame of reference over many epochs, in constant memory.

The heads are replaced by the truth: a camera that walks in a circle in front of a wavy floor. Each epoch sees it from a
random frame of reference, in a random unit.
"""

import resource
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from retinad.pipeline.config import ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Features, Frame, FrameStamp
from retinad.pipeline.geometry.pose import Floats, quaternion_from_rotation, rotation_from_quaternion
from retinad.pipeline.geometry.similarity import Similarity
from retinad.pipeline.model.camera_head import CameraHead
from retinad.pipeline.model.dense_head import DenseHead

from .engine_rig import good
from .heads_rig import HEADS, numbers

SIZE = (28, 28)
MODEL: ModelConfig = replace(HEADS, image_width=28)
STREAM = StreamConfig(scale_frames=4, window=4, history_frames=8)
PIXELS = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)


def true_pose(number: int) -> Floats:
    """The pose at a frame: a round in 500 frames, looking along the way."""
    angle = 2 * np.pi * number / 500
    turn = rotation_from_quaternion(np.array([0, np.sin(angle / 2), 0, np.cos(angle / 2)]))
    return np.column_stack([turn, [5 * np.cos(angle), 0.3 * np.sin(3 * angle), 5 * np.sin(angle)]])


def true_depth(number: int) -> Floats:
    rows, columns = np.mgrid[: SIZE[1], : SIZE[0]]
    depth: Floats = 2 + 0.05 * rows + 0.03 * columns + 0.2 * np.cos(number / 7)
    return depth


def random_frame(generator: np.random.Generator) -> Similarity:
    quaternion = generator.normal(size=4)
    turn = rotation_from_quaternion(quaternion / np.linalg.norm(quaternion))
    return Similarity(float(generator.uniform(0.3, 3)), turn, generator.normal(size=3))


class Truth:
    """What the heads say of the next frames that run: poses and depths as an epoch sees them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._generator = np.random.default_rng(0)
        self._from_world = Similarity.identity()
        self._poses: deque[Floats] = deque()
        self._depths: deque[Floats] = deque()
        monkeypatch.setattr(CameraHead, "forward", lambda head, tokens, memory: self._next_poses(len(tokens)))
        monkeypatch.setattr(DenseHead, "forward", lambda head, layers, grid, size: self._next_maps(len(layers[0])))

    def new_epoch(self) -> None:
        self._from_world = random_frame(self._generator)

    def expect(self, number: int) -> None:
        pose = self._from_world.pose(true_pose(number))
        self._poses.append(np.array([*pose[:, 3], *quaternion_from_rotation(pose[:, :3]), 1.0, 1.0]))
        self._depths.append(self._from_world.scale * true_depth(number))

    def _next_poses(self, count: int) -> Tensor:
        return torch.tensor(np.array([self._poses.popleft() for _ in range(count)]), dtype=torch.float32)

    def _next_maps(self, count: int) -> tuple[Tensor, Tensor]:
        depths = torch.tensor(np.array([self._depths.popleft() for _ in range(count)]), dtype=torch.float32)
        return depths.log()[..., None], torch.full_like(depths, 2)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize(
    ("frames", "epoch_frames"),
    [(300, 20), pytest.param(5_000, 320, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
)
def test_one_trajectory_over_all_epochs(frames: int, epoch_frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = Truth(monkeypatch)
    model = replace(MODEL, outputs=tuple(kind for kind in MODEL.outputs if kind != "points"))
    errors: list[tuple[float, float]] = []
    memory: list[tuple[int, int, int]] = []
    with Engine(model) as engine:
        engine.open_stream("a", replace(STREAM, epoch_frames=epoch_frames), ResizeMode.CROP)
        stream = engine.streams["a"]
        for number in range(frames):
            if stream.over:
                truth.new_epoch()
                for shared in range(number - STREAM.scale_frames, number):
                    truth.expect(shared)
            truth.expect(number)
            stamp = FrameStamp("a", 0, number, 0, 0, None, SIZE)
            errors += map(errors_of, good(engine.step([Frame(stamp, PIXELS)])))
            if number % 500 == 499 or number == frames - 1:
                (counted,) = engine.statistics().streams
                memory.append((counted.nbytes, counted.recent_nbytes, resident_bytes()))
                print(f"{number + 1:6} frames, epoch {counted.epoch}: {[size / 1e6 for size in memory[-1]]} MB")
        epochs = stream.epoch
    pose_error, depth_error = np.max(errors, axis=0)
    print(f"largest error of a pose {pose_error:.2e}, of a depth {depth_error:.2e}, {epochs} epochs")
    assert (len(errors), epochs >= frames // epoch_frames - 1) == (frames, True)
    # Each epoch's scale is a median of ratios of float16 depths, which are rounded by 2^-11 at most.
    assert pose_error < 1e-3 * epochs
    assert depth_error < 1e-3 + 2e-4 * epochs
    assert len({sizes[:2] for sizes in memory}) == 1
    assert memory[-1][2] - memory[0][2] < 2 << 20


def errors_of(record: Features) -> tuple[float, float]:
    """The largest error of the pose, in the first epoch's unit, and the median relative error of the depth."""
    assert record.geometry is not None
    assert (record.geometry.world_epoch, record.geometry.alignment.reason) == (0, None)
    number = record.stamp.source_seq
    pose = np.abs(numbers(record, "pose/world_from_camera") - true_pose(number)).max()
    return float(pose), float(np.abs(np.median(numbers(record, "depth") / true_depth(number)) - 1))
