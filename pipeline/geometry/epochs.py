"""Alignment of a stream's new epoch to its old one, over the frames that both have seen."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .pose import Floats
from .similarity import Similarity

PIXELS_PER_FRAME = 4096
"""The median takes every n-th valid pixel, so that a frame gives at most twice as many."""


@dataclass(frozen=True, eq=False)
class SharedFrame:
    """Poses world_from_camera [3, 4] and depth maps of one size [H, W], in each epoch's own scale."""

    old_pose: Floats
    new_pose: Floats
    old_depth: npt.NDArray[np.float32]
    new_depth: npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Alignment:
    """The map from the new epoch to the old one, and how well it fits.

    centre_residual: median distance of centres over the median old depth. rotation_degrees: median over frames.
    depth_spread: median absolute deviation of log(old / new) depth. `reason` is empty if good.
    """

    similarity: Similarity
    centre_residual: float
    rotation_degrees: float
    depth_spread: float
    reason: str

    @property
    def good(self) -> bool:
        """Whether each residual is below its threshold: 0.1, 5 degrees, 0.2."""
        return not self.reason


def align(frames: Sequence[SharedFrame], keyframe: int) -> Alignment:
    """Aligns over shared frames, with the rotation of frames[keyframe], the last common keyframe.

    scale: median ratio of depths, within 1e-3..1e3; translation: median by axis of c_old - s R c_new. Bad, with the
    identity, if there is no valid depth or a pose is not finite.
    """
    nothing = Similarity.identity()
    if not frames or not all(np.isfinite(f.old_pose).all() and np.isfinite(f.new_pose).all() for f in frames):
        return Alignment(nothing, np.inf, np.inf, np.inf, "no shared frames, or a pose is not finite")
    pairs = np.concatenate([_depth_pairs(frame) for frame in frames])
    if not len(pairs):
        return Alignment(nothing, np.inf, np.inf, np.inf, "no pixel has a valid depth in both epochs")
    logs = np.log(pairs[:, 0]) - np.log(pairs[:, 1])
    scale = float(np.clip(np.exp(np.median(logs)), 1e-3, 1e3))
    u, _, vt = np.linalg.svd(frames[keyframe].old_pose[:, :3] @ frames[keyframe].new_pose[:, :3].T)
    rotation = u @ vt
    moved = np.stack([f.old_pose[:, 3] - scale * rotation @ f.new_pose[:, 3] for f in frames])
    shift = np.median(moved, axis=0)
    centre = float(np.median(np.linalg.norm(moved - shift, axis=1)) / np.median(pairs[:, 0]))
    cosines = [(np.trace(f.old_pose[:, :3].T @ rotation @ f.new_pose[:, :3]) - 1) / 2 for f in frames]
    degrees = float(np.median(np.degrees(np.arccos(np.clip(cosines, -1, 1)))))
    spread = float(np.median(np.abs(logs - np.median(logs))))
    limits = (("centres", centre, 0.1), ("rotations in degrees", degrees, 5), ("log depth ratios", spread, 0.2))
    faults = [f"{name} differ by {value:.3g}, more than {limit}" for name, value, limit in limits if value > limit]
    return Alignment(Similarity(scale, rotation, shift), centre, degrees, spread, "; ".join(faults))


def _depth_pairs(frame: SharedFrame) -> Floats:
    old, new = frame.old_depth.ravel(), frame.new_depth.ravel()
    valid = np.flatnonzero(np.isfinite(old) & np.isfinite(new) & (old > 0) & (new > 0))
    valid = valid[:: max(1, len(valid) // PIXELS_PER_FRAME)]
    return np.stack([old[valid], new[valid]], -1).astype(np.float64)
