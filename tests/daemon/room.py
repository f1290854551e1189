"""A drawn room, a camera that moves through it, and an engine that knows the true poses and depths.

The formulas are those of the documentation, written out again: nothing of the product's geometry is used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from retinad.pipeline.config import ModelConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.executor import StepOutput
from retinad.pipeline.engine.model_runner import WhileDeviceBusy
from retinad.pipeline.frames import Frame

from ..client.posed import turned

Floats = npt.NDArray[np.floating[Any]]
Walls = npt.NDArray[np.intp]
LOW, HIGH = np.array([-3.0, -2.0, -4.0]), np.array([3.0, 2.0, 6.0])
"""Corners of the room. It is convex: whatever is in the field of view is seen."""
FIELD = np.array([1.25, 1.0])
"""Horizontal and vertical field of view of the model's image, in radians."""


@dataclass(frozen=True)
class Step:
    """Where the camera is at one frame: its direction in degrees, and its position."""

    yaw: float
    pitch: float
    at: tuple[float, float, float]

    @property
    def pose(self) -> Floats:
        """World from camera, [3, 4]."""
        return turned(self.yaw, self.pitch, self.at)

    @property
    def encoding(self) -> list[float]:
        """The pose as the network gives it: the quaternion is that of the yaw times that of the pitch, times 2."""
        a, b = np.radians([self.yaw, self.pitch]) / 2
        quaternion = [np.cos(a) * np.sin(b), np.sin(a) * np.cos(b), -np.sin(a) * np.sin(b), np.cos(a) * np.cos(b)]
        return [*self.at, *(2 * part for part in quaternion), FIELD[1], FIELD[0]]


WALK = tuple(Step(9.0 * n, 4.0 * n - 10, (0.3 * n - 0.5, 0.1 * n, 0.4 * n - 1)) for n in range(5))
"""It turns, nods, and moves in all directions; a longer recording repeats it."""


def camera_matrix(width: int, height: int) -> Floats:
    """The camera matrix of the model's image."""
    fx, fy = np.array([width, height]) / 2 / np.tan(FIELD / 2)
    return np.array([[fx, 0, width / 2], [0, fy, height / 2], [0, 0, 1]])


def look(pose: Floats, camera: Floats, pixels: Floats) -> tuple[Floats, Walls]:
    """The depth [...] at pixels [..., 2], and which of the six walls is seen there."""
    rays = np.concatenate([pixels, np.ones((*pixels.shape[:-1], 1))], axis=-1) @ np.linalg.inv(camera).T
    towards = rays @ pose[:, :3].T
    bounds = np.where(towards > 0, HIGH, LOW)
    with np.errstate(divide="ignore"):
        reached = np.where(towards == 0, np.inf, (bounds - pose[:, 3]) / towards)
    axis = reached.argmin(axis=-1)
    return reached.min(axis=-1), 2 * axis + (np.take_along_axis(towards, axis[..., None], -1)[..., 0] > 0)


def pixels_of(width: int, height: int) -> Floats:
    """The pixels (u, v) of an image, [height, width, 2]."""
    return np.stack(np.meshgrid(np.arange(float(width)), np.arange(float(height))), axis=-1)


def world_points(pose: Floats, camera: Floats, pixels: Floats) -> Floats:
    """The points of the walls that are seen at pixels [..., 2]."""
    depth, _ = look(pose, camera, pixels)
    rays = np.concatenate([pixels, np.ones((*pixels.shape[:-1], 1))], axis=-1) @ np.linalg.inv(camera).T
    points: Floats = (rays * depth[..., None]) @ pose[:, :3].T + pose[:, 3]
    return points


def paint(points: Floats) -> Floats:
    """The colour of points [..., 3] of the walls: waves of about four units."""
    colours: Floats = 127.5 + 120 * np.sin(1.5 * points + np.array([0, 1, 2]) + 0.7 * points[..., [1, 2, 0]])
    return colours


class AllKnowingEngine(Engine):
    """A small real engine whose heads say the truth about the room instead of what the network thinks."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self._steps: list[Step] = []
        model = self.model_runner.model
        assert model.camera_head is not None
        assert model.depth_head is not None
        setattr(model.camera_head, "forward", self._poses)  # noqa: B010  # a module has no setter for it
        setattr(model.depth_head, "forward", self._depths)  # noqa: B010

    def step_outputs(
        self, frames: Sequence[Frame], while_device_busy: WhileDeviceBusy | None = None
    ) -> Iterator[StepOutput]:
        self._steps = [WALK[frame.stamp.source_seq % len(WALK)] for frame in frames]
        yield from super().step_outputs(frames, while_device_busy)

    def _poses(self, tokens: Tensor, memory: object) -> Tensor:
        return torch.tensor([step.encoding for step in self._steps], dtype=torch.float32)

    def _depths(self, layers: object, grid: object, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        depth = np.stack([look(step.pose, camera_matrix(*size), pixels_of(*size))[0] for step in self._steps])
        raw = torch.from_numpy(np.log(depth)).float()  # the head's last step is an exponential
        return raw[..., None], torch.full_like(raw, 2.0)
