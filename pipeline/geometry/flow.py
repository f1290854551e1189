"""The motion of the image between two frames, computed from their poses and the depth of the first one."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .pose import Floats

_NEAR = 1e-6
"""Points closer than this to the camera's plane, or behind it, have no place in the image."""


@dataclass(frozen=True, slots=True, eq=False)
class DepthView:
    """A frame with known depth, from which the motion of later frames is measured.

    Attributes:
        depth: [h, w] float32, along the optical axis; not finite or not positive where it is unknown.
        stride: pixel (column, row) of the depth is pixel (stride column, stride row) of the image.
        intrinsics: [3, 3] float64, the camera matrix for pixels of the image.
        pose: [3, 4] float64, world from camera, in the unit of the depth.
    """

    depth: npt.NDArray[np.float32]
    stride: int
    intrinsics: Floats
    pose: Floats


def mean_flow(view: DepthView, pose: Floats) -> float | None:
    """The mean distance in pixels that the points of a frame move in the image when the camera moves to another pose.

    Both frames are taken to have the first one's intrinsics, so that noise in the estimated focal length is no motion.

    Args:
        view: the first frame.
        pose: [3, 4] float64, the other frame's pose, world from camera.

    Returns:
        the mean over all pixels with a known depth whose points are in front of the camera in both frames; None if
        there are no such pixels.
    """
    rows, columns = np.nonzero(np.isfinite(view.depth) & (view.depth > 0))
    depth = view.depth[rows, columns].astype(np.float64)
    pixels = np.stack([columns, rows], axis=-1) * float(view.stride)
    focal, centre = view.intrinsics.diagonal()[:2], view.intrinsics[:2, 2]
    rays = np.column_stack([(pixels - centre) / focal, np.ones(len(pixels))])
    world = (depth[:, None] * rays) @ view.pose[:, :3].T + view.pose[:, 3]
    seen = (world - pose[:, 3]) @ pose[:, :3]
    front = seen[:, 2] > _NEAR
    if not front.any():
        return None
    moved = seen[front, :2] / seen[front, 2:] * focal + centre - pixels[front]
    return float(np.hypot(*moved.T).mean())
