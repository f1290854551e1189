"""Puts a record's pose and depth into words for one line. Needs the base install only."""

import numpy as np

from retinad.client import FeaturesRecord


def pose_words(record: FeaturesRecord) -> list[str]:
    """The words: the camera's position and direction, the depth, and whether the alignment is bad; none without them.

    Yaw is the angle from the world's z axis to the right, pitch the angle upwards, against the y axis. The depth and
    its confidence are medians over the pixels that have a depth.
    """
    words = []
    if "pose/world_from_camera" in record.tensors:
        words += _position_words(record)
    if "depth" in record.tensors:
        words.append(_depth_word(record))
    if record.geometry is not None and record.geometry.alignment.reason is not None:
        words.append(f"[bad alignment: {record.geometry.alignment.reason}]")
    return words


def _position_words(record: FeaturesRecord) -> list[str]:
    pose = record.world_from_camera.astype(np.float64)
    if not np.isfinite(pose).all():
        return ["no pose"]
    unit = "" if record.geometry is None else f" (unit: {record.geometry.unit})"
    x, y, z = pose[:, 2]  # where the camera looks
    yaw, pitch = np.degrees([np.arctan2(x, z), np.arctan2(-y, np.hypot(x, z))]) + 0.0  # no -0
    position = " ".join(f"{number:.4g}" for number in pose[:, 3] + 0.0)
    return [f"at {position}{unit}", f"yaw {yaw:.1f} pitch {pitch:.1f} deg"]


def _depth_word(record: FeaturesRecord) -> str:
    depth = record.depth.astype(np.float32)
    seen = np.isfinite(depth) & (depth > 0)
    if not seen.any():
        return "no depth"
    word = f"depth {np.median(depth[seen]):.4g}"
    if "depth_confidence" not in record.tensors:
        return word
    return f"{word} (confidence {np.median(record.depth_confidence.astype(np.float32)[seen]):.4g})"
