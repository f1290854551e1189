"""A camera's pose and intrinsics from the model's pose encoding.

The encoding is (t xyz, quaternion xyzw, fov_h, fov_w). [R|t] is world-from-camera, as the authors of LingBot-Map
(arXiv 2604.14141) state: t is the camera's position. Axes: x right, y down, z forward.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def world_from_camera(encoding: npt.ArrayLike) -> Floats | None:
    """The pose [3, 4] float64 of an encoding [9]; None if translation or quaternion is not finite, or it is zero."""
    values = np.asarray(encoding, np.float64)
    if values.shape != (9,):
        raise ValueError(f"expected a pose encoding of shape (9,), got {values.shape}")
    norm = np.linalg.norm(values[3:7])
    if not np.isfinite(values[:7]).all() or not np.isfinite(norm) or norm < 1e-12:
        return None
    return np.column_stack([rotation_from_quaternion(values[3:7] / norm), values[:3]])


def rotation_from_quaternion(quaternion: Floats) -> Floats:
    """The rotation [3, 3] of a unit quaternion [4], xyzw."""
    x, y, z, w = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def quaternion_from_rotation(rotation: Floats) -> Floats:
    """The unit quaternion [4], xyzw with w >= 0, of a rotation [3, 3].

    The eigenvector of Bar-Itzhack's symmetric matrix (2000), which has no case that loses digits.
    """
    (a, b, c), (d, e, f), (g, h, i) = rotation
    matrix = np.array(
        [
            [a - e - i, b + d, c + g, h - f],
            [b + d, e - a - i, f + h, c - g],
            [c + g, f + h, i - a - e, d - b],
            [h - f, c - g, d - b, a + e + i],
        ]
    )
    found: Floats = np.linalg.eigh(matrix)[1][:, -1]
    return -found if found[3] < 0 else found


def intrinsics(encoding: npt.ArrayLike, width: int, height: int) -> Floats | None:
    """K [3, 3] float64 in pixels, for a picture of width x height; None unless both angles are in (0, pi).

    fx = (W/2) / tan(fov_w/2), fy = (H/2) / tan(fov_h/2), cx = W/2, cy = H/2. A field of view after ReLU may be 0.
    """
    fov_h, fov_w = np.asarray(encoding, np.float64)[7:9]
    if not (0 < fov_h < np.pi and 0 < fov_w < np.pi):
        return None
    fx, fy = width / 2 / np.tan(fov_w / 2), height / 2 / np.tan(fov_h / 2)
    return np.array([[fx, 0, width / 2], [0, fy, height / 2], [0, 0, 1]])


def source_intrinsics(model: Floats, to_source: npt.ArrayLike) -> Floats:
    """K [3, 3] of the source, from K of the model and the affine map [2, 3] of pixels, centres at whole numbers."""
    return np.vstack([np.asarray(to_source, np.float64), [0, 0, 1]]) @ model
