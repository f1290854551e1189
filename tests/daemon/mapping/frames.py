"""Frames with poses, made from rotations about any axis, by formulas of their own."""

from typing import Any

import numpy as np
import numpy.typing as npt

from retinad.daemon.mapping.frames import PosedFrame

Floats = npt.NDArray[np.floating[Any]]


def rotation_about(axis: Floats, degrees: float) -> Floats:
    """Rodrigues' formula: the rotation [3, 3] about a unit axis."""
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = np.radians(degrees)
    turned: Floats = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    return turned


def turned_by(quaternion: Floats, vector: Floats) -> Floats:
    """A vector turned by a quaternion x y z w: the vector part of q v q*."""
    part, w = quaternion[:3], quaternion[3]
    found: Floats = vector + 2 * np.cross(part, np.cross(part, vector) + w * vector)
    return found


def frame(
    number: int,
    at: tuple[float, float, float] = (0.0, 0.0, 0.0),
    *,
    rotation: Floats | None = None,
    epoch: int = 0,
    world_epoch: int = 0,
    doubt: str | None = None,
    lost: bool = False,
    time_ns: int | None = None,
) -> PosedFrame:
    """A frame of a camera at `at`; without a pose if it is `lost`."""
    pose = np.column_stack([np.eye(3) if rotation is None else rotation, at])
    return PosedFrame(
        world_epoch=world_epoch,
        epoch=epoch,
        epoch_frame=number,
        time_ns=number * 10**8 if time_ns is None else time_ns,
        unit="stream",
        doubt=doubt,
        pose=None if lost else pose,
    )
