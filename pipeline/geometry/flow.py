"""The image motion between two poses: what keyframes are chosen by."""

import numpy as np
import numpy.typing as npt

from .pose import Floats
from .unproject import unproject


def mean_flow(depth: npt.NDArray[np.float32], k: Floats, new: Floats, old: Floats, stride: int = 8) -> float | None:
    """Mean motion in pixels, from pose `new` [3, 4], which has depth [H, W], to pose `old`.

    Every stride-th row and column counts, if its depth is valid and its point in front of both cameras; None if
    no pixel counts.
    """
    grid = (slice(None, None, stride), slice(None, None, stride))
    v, u = np.indices(depth.shape)[:, ::stride, ::stride]
    scaled = k.copy()
    scaled[:2] /= stride
    seen = (unproject(depth[grid], scaled, new).astype(np.float64) - old[:, 3]) @ old[:, :3]
    front = seen[..., 2] > 1e-6
    x, y, z = seen[front].T
    if not len(z):
        return None
    du, dv = k[0, 0] * x / z + k[0, 2] - u[front], k[1, 1] * y / z + k[1, 2] - v[front]
    return float(np.hypot(du, dv).mean())
