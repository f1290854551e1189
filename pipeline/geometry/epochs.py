"""Alignment of a stream's new epoch to its old one, over the frames that both have seen.

Each epoch has a frame of reference and a unit of length of its own. The similarity between two epochs follows from the
poses and depths that both give the same frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .pose import Floats
from .similarity import Similarity

PIXELS_PER_FRAME = 4096
"""The median of depth ratios takes every n-th valid pixel of a frame, so that there are at most twice as many."""

SCALES = (1e-3, 1e3)
"""Least and greatest scale of an alignment."""

MOST_CENTRE_RESIDUAL = 0.1
MOST_DEGREES = 5.0
MOST_DEPTH_SPREAD = 0.2
"""Residuals above these limits are bad. The limits are chosen, not measured."""

DepthMap = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True, eq=False)
class SharedFrame:
    """What two epochs say of the same frame.

    Attributes:
        old_pose, new_pose: [3, 4] float64, world from camera in each epoch's frame of reference.
        old_depth, new_depth: [H, W] in each epoch's unit; None without depth.
    """

    old_pose: Floats
    new_pose: Floats
    old_depth: DepthMap | None = None
    new_depth: DepthMap | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EpochAlignment:
    """The similarity from the new epoch to the old one, and how well it fits.

    Attributes:
        similarity: maps the new epoch's frame of reference to the old one's.
        centre_residual: median distance between camera centres, as a fraction of the median old depth; without depth,
            of the centres' spread. NaN if neither is known.
        degrees: median angle between the frames' rotations.
        reason: why the alignment should not be trusted; None if it is good.
    """

    similarity: Similarity
    centre_residual: float
    degrees: float
    reason: str | None


def align(frames: Sequence[SharedFrame], keyframe: int) -> EpochAlignment:
    """Align two epochs over the frames that they share.

    The rotation R is that of the keyframe: R_old R_new^T. The scale s is the median ratio of old to new depth over the
    pixels of all frames, clamped to `SCALES`. Without depth, it is the ratio of the distances between camera centres.
    The translation is the median, for each axis, of c_old - s R c_new over the camera centres c.

    Args:
        frames: the shared frames, at least one. Their poses are finite.
        keyframe: index of the last frame that is a keyframe in both epochs.
    """
    logs = _log_ratios(frames)
    scale, unit, doubt = _scale(frames, logs)
    limited = float(np.clip(scale, *SCALES))
    u, _, vt = np.linalg.svd(frames[keyframe].old_pose[:, :3] @ frames[keyframe].new_pose[:, :3].T)
    rotation = u @ vt
    moved = np.stack([frame.old_pose[:, 3] - limited * rotation @ frame.new_pose[:, 3] for frame in frames])
    shift = np.median(moved, axis=0)
    centre = float(np.median(np.linalg.norm(moved - shift, axis=1))) / unit
    degrees = float(np.median([_degrees(frame.old_pose[:, :3], rotation @ frame.new_pose[:, :3]) for frame in frames]))
    spread = float(np.median(np.abs(logs - np.median(logs)))) if len(logs) else 0.0
    faults = [
        f"{what} differ by {value:.3g}{unit_name}"
        for what, value, most, unit_name in (
            ("camera positions", centre, MOST_CENTRE_RESIDUAL, " of the depth" if len(logs) else " of their spread"),
            ("rotations", degrees, MOST_DEGREES, " degrees"),
            ("logarithms of depth ratios", spread, MOST_DEPTH_SPREAD, ""),
        )
        if value > most
    ]
    if limited != scale:
        faults.append(f"the scale {scale:.3g} is out of range")
    if doubt is not None:
        faults.append(doubt)
    return EpochAlignment(Similarity(limited, rotation, shift), centre, degrees, "; ".join(faults) or None)


def _scale(frames: Sequence[SharedFrame], logs: Floats) -> tuple[float, float, str | None]:
    # The scale, the length that residuals are a fraction of, and a doubt about the scale.
    if len(logs):
        depths = [_valid(frame.old_depth) for frame in frames if frame.old_depth is not None]
        return float(np.exp(np.median(logs))), float(np.median(np.concatenate(depths))), None
    old, new = (_distances(np.stack([pose[:, 3] for pose in poses])) for poses in _poses(frames))
    if not len(old) or np.median(old) <= 0 or np.median(new) <= 0:
        return 1.0, np.nan, "the scale is unknown: there is no depth, and the camera stood still"
    return float(np.median(old) / np.median(new)), float(np.median(old)), None


def _poses(frames: Sequence[SharedFrame]) -> tuple[list[Floats], list[Floats]]:
    return [frame.old_pose for frame in frames], [frame.new_pose for frame in frames]


def _distances(centres: Floats) -> Floats:
    rows, columns = np.triu_indices(len(centres), 1)
    found: Floats = np.linalg.norm(centres[rows] - centres[columns], axis=1)
    return found


def _degrees(one: Floats, other: Floats) -> float:
    cosine = (np.trace(one.T @ other) - 1) / 2
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


def _log_ratios(frames: Sequence[SharedFrame]) -> Floats:
    found = [
        _frame_log_ratios(frame.old_depth, frame.new_depth)
        for frame in frames
        if frame.old_depth is not None and frame.new_depth is not None
    ]
    return np.concatenate(found) if found else np.zeros(0)


def _frame_log_ratios(old: DepthMap, new: DepthMap) -> Floats:
    before, after = old.ravel().astype(np.float64), new.ravel().astype(np.float64)
    valid = np.flatnonzero(np.isfinite(before) & np.isfinite(after) & (before > 0) & (after > 0))
    valid = valid[:: max(1, len(valid) // PIXELS_PER_FRAME)]
    found: Floats = np.log(before[valid]) - np.log(after[valid])
    return found


def _valid(depth: DepthMap) -> Floats:
    flat = depth.ravel().astype(np.float64)
    return flat[np.isfinite(flat) & (flat > 0)]
