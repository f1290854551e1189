"""Makes the pose encoding of each frame from the encodings of its window's frames, as HorizonStream estimates them.

The network's poses map coordinates of the frame's camera to those of the other cameras. Here they become one
trajectory, in the direction that everything else uses: world from camera.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..frames import Features, Flag, Numbers, OutputTensor
from ..geometry.online_poses import CameraPose, OnlinePoses
from ..geometry.pose import Floats, quaternion_from_rotation
from .pose_outputs import ENCODING, WINDOW


@dataclass(frozen=True, slots=True)
class SavedPoses:
    """The poses of a stream's last frames in a state file, see `OnlinePoses`; 7 numbers each."""

    origin: tuple[float, ...] | None
    recent: tuple[tuple[float, ...] | None, ...]


def encode_windows(records: Sequence[Features], online: OnlinePoses) -> list[Features]:
    """Replace the encodings of the windows' frames by those of the records' own frames.

    Args:
        records: consecutive frames of one stream: all frames of a first step, or later ones. Without poses, they are
            returned unchanged.
        online: the poses of the stream's last frames, to which these are added.

    Returns:
        records whose encodings are in the frame of reference of the epoch's first camera, in metres. Where no pose can
        be computed, the encoding is NaN.
    """
    windows = [window for record in records if (window := _window(record)) is not None]
    if not windows:
        return list(records)
    if Flag.WARMUP in records[0].flags:
        poses, slots = online.first_step(windows[-1]), windows[-1]
    else:
        poses, slots = [online.add(window) for window in windows], np.stack([window[-1] for window in windows])
    return [_encoded(*each) for each in zip(records, poses, slots, strict=True)]


def saved_poses(online: OnlinePoses) -> SavedPoses:
    """The poses for a state file."""
    origin = None if online.origin is None else online.origin.numbers()
    return SavedPoses(origin, tuple(None if pose is None else pose.numbers() for pose in online.recent))


def restore_poses(online: OnlinePoses, saved: SavedPoses) -> None:
    """Continue with saved poses.

    Raises:
        ValueError: they are not poses, or too many.
    """
    origin = None if saved.origin is None else CameraPose.from_numbers(saved.origin)
    recent = [None if numbers is None else CameraPose.from_numbers(numbers) for numbers in saved.recent]
    if len(recent) >= max(online.window, 1):
        raise ValueError(f"{len(recent)} poses, but a window of {online.window} frames has fewer before its last")
    online.origin = origin
    online.recent.clear()
    online.recent.extend(recent)


def _window(record: Features) -> Numbers | None:
    return next((tensor.data for tensor in record.tensors if tensor.name == WINDOW), None)


def _encoded(record: Features, pose: Floats | None, slot: Numbers) -> Features:
    numbers = np.full(ENCODING.shape, np.nan, np.float32)
    if pose is not None:
        numbers[:3], numbers[3:7] = pose[:, 3], quaternion_from_rotation(pose[:, :3])
    numbers[7:] = slot[7:]
    tensors = (OutputTensor(ENCODING, numbers) if tensor.name == WINDOW else tensor for tensor in record.tensors)
    return replace(record, tensors=tuple(tensors))
