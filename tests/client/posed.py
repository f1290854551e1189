"""Messages of a camera that moves through a drawn scene, with true poses and depths in place of a network's."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from retinad.client.wire import AlignmentHeader, Buffer, GeometryHeader, TensorHeader, encode_features

from .messages import header

Floats = npt.NDArray[np.floating[Any]]
SIZE = (30, 20)
CAMERA = np.array([[25.0, 0, 15], [0, 25, 10], [0, 0, 1]], np.float32)
WALL = 8.0
"""The wall is the plane z = WALL of the world."""
UNSURE = 10
"""Number of columns, from the left, whose confidence is 1; that of the others is 3."""


def forward(seq: int) -> Floats:
    """A pose at (0, 0, seq), not turned."""
    pose = np.eye(3, 4)
    pose[2, 3] = seq
    return pose


def turned(yaw: float, pitch: float, at: tuple[float, float, float]) -> Floats:
    """A camera turned to the right by `yaw`, then up by `pitch` (degrees), from its axes written out one by one."""
    a, b = np.radians(yaw), np.radians(pitch)
    z = [np.sin(a) * np.cos(b), -np.sin(b), np.cos(a) * np.cos(b)]  # y is down
    x = [np.cos(a), 0, -np.sin(a)]
    y = [z[1] * x[2] - z[2] * x[1], z[2] * x[0] - z[0] * x[2], z[0] * x[1] - z[1] * x[0]]
    return np.array([[x[row], y[row], z[row], at[row]] for row in range(3)])


def depth_of_wall(pose: Floats) -> Floats:
    """The depth of the wall for each pixel of the model's image; NaN where it is behind the camera."""
    columns, rows = np.meshgrid(np.arange(float(SIZE[0])), np.arange(float(SIZE[1])))
    x, y = (columns - CAMERA[0, 2]) / CAMERA[0, 0], (rows - CAMERA[1, 2]) / CAMERA[1, 1]
    towards = pose[2, 0] * x + pose[2, 1] * y + pose[2, 2]  # world z gained per unit of depth
    return np.where(towards > 1e-6, (WALL - pose[2, 3]) / np.maximum(towards, 1e-6), np.nan)


def posed_message(
    instance: str,
    camera: str,
    seq: int,
    *,
    stride: int = 1,
    pose: Floats | None = None,
    depth: Floats | None = None,
    geometry: GeometryHeader | None = None,
    without: tuple[str, ...] = (),
    **fields: object,
) -> list[Buffer]:
    """The parts of a record of the wall.

    Args:
        instance, camera, seq: fields of the header.
        stride: that of the maps.
        pose: the camera's pose; None for `forward(seq)`.
        depth: the depth map; None for that of the wall.
        geometry: replaces the header's geometry.
        without: names of tensors to leave out.
        fields: replace those of the header.
    """
    pose = forward(seq) if pose is None else pose
    depth = depth_of_wall(pose) if depth is None else depth
    confidence = np.where(np.arange(SIZE[0]) < UNSURE, 1, 3) * np.ones((SIZE[1], 1))
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "pose/world_from_camera": pose.astype(np.float32),
        "pose/intrinsics": CAMERA,
        "pose/source_intrinsics": np.diag([2.0, 2, 1]).astype(np.float32) @ CAMERA,
        "depth": depth[::stride, ::stride].astype(np.float16),
        "depth_confidence": confidence[::stride, ::stride].astype(np.float16),
    }
    arrays = {name: array for name, array in arrays.items() if name not in without}
    tensors = [
        TensorHeader(name=name, dtype=array.dtype.str, shape=array.shape, nbytes=array.nbytes)
        for name, array in arrays.items()
    ]
    usual: dict[str, object] = {
        "instance": instance,
        "geometry": geometry or GeometryHeader(world_epoch=0, map_stride=stride, alignment=AlignmentHeader()),
        "model_size": SIZE,
        "source_size": (2 * SIZE[0], 2 * SIZE[1]),
        "to_source": ((2.0, 0.0, 0.5), (0.0, 2.0, 0.5)),
    }
    made = msgspec.structs.replace(header(*tensors, camera=camera, seq=seq), **(usual | fields))
    return encode_features(made, [memoryview(array.tobytes()) for array in arrays.values()])
