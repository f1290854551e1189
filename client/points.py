"""Points of a depth map, in numpy: x = depth K^-1 (u, v, 1), then the pose."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.generic]
FloatArray = npt.NDArray[np.float32]
Whole = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class DepthView:
    """A depth map and what places it.

    Attributes:
        depth: [rows, columns], along the optical axis.
        camera: the camera matrix [3, 3], for pixels of the model's image.
        to_source: [2, 3], maps a pixel of the model's image to one of the captured frame.
        shown: left, top, width and height of the part of the captured frame that the model's image shows.
        stride: pixel (column, row) of the map is pixel (stride column, stride row) of the model's image.
        confidence: [rows, columns], or None if nothing is cut.
        min_confidence: pixels with less confidence are left out.
        pose: world from camera [3, 4]; None for points in the camera's coordinates.
    """

    depth: Numbers
    camera: Numbers
    to_source: Numbers
    shown: tuple[int, int, int, int]
    stride: int = 1
    confidence: Numbers | None = None
    min_confidence: float = 0.0
    pose: Numbers | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ViewPoints:
    """The points of a depth map, and where they are seen.

    Attributes:
        points: float32 [N, 3].
        rows, columns: pixels of the depth map, [N] each.
        x, y: pixels of the captured frame, [N] each, within `shown`.
    """

    points: FloatArray
    rows: Whole
    columns: Whole
    x: Whole
    y: Whole


def points_of(view: DepthView) -> ViewPoints:
    """Compute the points of a depth map. Numbers too large for float32 become infinite.

    Left out are pixels without a depth, or with too little confidence, and those that show no part of the captured
    frame, such as padding. No point is left if the camera matrix or the pose is not finite.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # any numbers may come from the network
        return _points_of(view)


def _points_of(view: DepthView) -> ViewPoints:
    depth = view.depth.astype(np.float64)
    seen = np.isfinite(depth) & (depth > 0)
    if view.confidence is not None:
        seen &= view.confidence.astype(np.float64) >= view.min_confidence
    camera = view.camera.astype(np.float64)
    pose = None if view.pose is None else view.pose.astype(np.float64)
    if not _is_usable(camera) or (pose is not None and not np.isfinite(pose).all()):
        seen[:] = False
        camera = np.eye(3)
    rows, columns = np.nonzero(seen)
    stride = float(view.stride)
    pixels = np.stack((columns * stride, rows * stride, np.ones(len(rows))))
    x, y = np.rint(view.to_source.astype(np.float64) @ pixels)
    left, top, width, height = view.shown
    inside = (x >= left) & (x < left + width) & (y >= top) & (y < top + height)
    rows, columns, pixels, x, y = rows[inside], columns[inside], pixels[:, inside], x[inside], y[inside]
    points = np.linalg.inv(camera) @ pixels * depth[rows, columns]
    if pose is not None:
        points = pose[:, :3] @ points + pose[:, 3:]
    return ViewPoints(
        np.ascontiguousarray(points.T, dtype=np.float32), rows, columns, x.astype(np.intp), y.astype(np.intp)
    )


def _is_usable(camera: npt.NDArray[np.float64]) -> bool:
    return bool(np.isfinite(camera).all()) and abs(float(np.linalg.det(camera))) > 0
