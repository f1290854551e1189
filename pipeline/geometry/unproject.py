"""Points from depth. A pixel's u is its column's index, without + 0.5: the `to_source` map has centres there too."""

import numpy as np
import numpy.typing as npt

from .pose import Floats


def unproject(depth: npt.NDArray[np.float32], k: Floats, pose: Floats | None = None) -> npt.NDArray[np.float32]:
    """Points [H, W, 3] float32 of depth [H, W] along z: of the camera, or of the world with a pose [3, 4].

    Invalid depth (not finite, or <= 0) gives NaN.
    """
    v, u = np.indices(depth.shape)
    z = np.where(np.isfinite(depth) & (depth > 0), depth, np.nan).astype(np.float64)
    points = np.stack([(u - k[0, 2]) / k[0, 0] * z, (v - k[1, 2]) / k[1, 1] * z, z], -1)
    if pose is not None:
        points = points @ pose[:, :3].T + pose[:, 3]
    return points.astype(np.float32)
