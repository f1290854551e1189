"""Lens distortion: where a pixel of an undistorted picture lies in the picture as captured.

The two models are OpenCV's: Brown-Conrady with rational radial terms (`cv2.undistort`) and Kannala-Brandt for fisheye
lenses (`cv2.fisheye.undistortImage`). Straight lines of the scene are straight in the undistorted picture, which has
the camera matrix of the calibration.
"""

import numpy as np
import numpy.typing as npt

from ..frames import Size
from ..view_config import Calibration
from .pose import Floats


def distorted(calibration: Calibration, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Where pixels (x, y) of the undistorted picture lie in the captured one, in pixels."""
    (fx, fy), (cx, cy) = calibration.focal, calibration.centre
    bend = _fisheye if calibration.model == "fisheye" else _brown
    u, v = bend((x - cx) / fx, (y - cy) / fy, calibration.coefficients)
    return u * fx + cx, v * fy + cy


def _brown(u: Floats, v: Floats, coefficients: tuple[float, ...]) -> tuple[Floats, Floats]:
    k1, k2, p1, p2, k3, k4, k5, k6 = (*coefficients, *(0.0,) * (8 - len(coefficients)))
    r2 = u * u + v * v
    radial = (1 + r2 * (k1 + r2 * (k2 + r2 * k3))) / (1 + r2 * (k4 + r2 * (k5 + r2 * k6)))
    return (
        u * radial + 2 * p1 * u * v + p2 * (r2 + 2 * u * u),
        v * radial + p1 * (r2 + 2 * v * v) + 2 * p2 * u * v,
    )


def _fisheye(u: Floats, v: Floats, coefficients: tuple[float, ...]) -> tuple[Floats, Floats]:
    k1, k2, k3, k4 = coefficients
    radius = np.hypot(u, v)
    theta = np.arctan(radius)
    t2 = theta * theta
    bent = theta * (1 + t2 * (k1 + t2 * (k2 + t2 * (k3 + t2 * k4))))
    scale = np.divide(bent, radius, out=np.ones_like(radius), where=radius > 0)
    return u * scale, v * scale


def sampling_grid(calibration: Calibration, left: int, top: int, size: Size) -> npt.NDArray[np.float32]:
    """Where each pixel of an undistorted part of a frame is sampled from, for `torch.nn.functional.grid_sample`.

    Args:
        calibration: the camera, for frames of the captured size.
        left, top: first column and row of the part, in the captured frame.
        size: width and height of the part.

    Returns:
        float32 [height, width, 2]: x and y from -1 (the part's first column or row) to 1 (its last one).
    """
    width, height = size
    y, x = np.mgrid[:height, :width].astype(np.float64)
    x, y = distorted(calibration, x + left, y + top)
    across, down = max(width - 1, 1), max(height - 1, 1)
    return np.stack([2 * (x - left) / across - 1, 2 * (y - top) / down - 1], axis=-1).astype(np.float32)
