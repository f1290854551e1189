"""A cloud of points in bounded memory: one point in each voxel, the one of the highest confidence."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

VERTEX = np.dtype(
    [
        ("x", "<f4"),
        ("y", "<f4"),
        ("z", "<f4"),
        ("red", "|u1"),
        ("green", "|u1"),
        ("blue", "|u1"),
        ("confidence", "<f4"),
    ]
)
"""A point as it is kept and written: 19 bytes."""

MAX_POINTS = 2_000_000
"""Default limit on the points, in 54 MB with their voxels' numbers."""

_HALF = 1 << 20
"""Voxels along an axis to each side of the origin: three numbers of 21 bits fit into 63."""

Vertices = npt.NDArray[np.void]
Numbers = npt.NDArray[np.generic]
Keys = npt.NDArray[np.int64]


@dataclass(eq=False)
class VoxelCloud:
    """The cloud. When it exceeds its limit, its voxels are doubled in size and it is thinned again, as a whole.

    Attributes:
        voxel: edge of a voxel in the stream's unit; grows.
        max_points: limit on the points, at least 1.
        too_far: number of points that were left out because they are more than a million voxels from the origin.
    """

    voxel: float
    max_points: int = MAX_POINTS
    too_far: int = 0
    _keys: Keys = field(init=False, repr=False)
    _vertices: Vertices = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not (self.voxel > 0 and np.isfinite(self.voxel)) or self.max_points < 1:
            raise ValueError(f"voxel must be > 0 and max_points >= 1, got {self.voxel} and {self.max_points}")
        self.clear()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def vertices(self) -> Vertices:
        """The points, [N] of `VERTEX`, in the order of their voxels. A view, valid until the next `add`."""
        return self._vertices

    @property
    def nbytes(self) -> int:
        """Memory of the points in bytes, at most 27 for each of `max_points`."""
        return self._keys.nbytes + self._vertices.nbytes

    def clear(self) -> None:
        """Forget all points, for a new trajectory. The voxels keep their size."""
        self._keys = np.zeros(0, np.int64)
        self._vertices = np.zeros(0, VERTEX)
        self.too_far = 0

    def add(self, points: Numbers, confidence: Numbers, colours: Numbers | None = None) -> None:
        """Add the points of a frame.

        Args:
            points: [N, 3], finite, in the stream's unit.
            confidence: [N].
            colours: uint8 [N, 3], or None.
        """
        vertices = np.zeros(len(points), VERTEX)
        vertices["x"], vertices["y"], vertices["z"] = points.T
        vertices["confidence"] = confidence
        if colours is not None:
            vertices["red"], vertices["green"], vertices["blue"] = colours.T
        keys, near = _keys_of(vertices, self.voxel)
        self.too_far += len(vertices) - int(near.sum())
        self._merge(*_thinned(keys[near], vertices[near]))
        while len(self) > self.max_points:
            self.voxel *= 2
            keys, near = _keys_of(self._vertices, self.voxel)
            self._keys, self._vertices = _thinned(keys, self._vertices)

    def _merge(self, keys: Keys, vertices: Vertices) -> None:
        places = np.searchsorted(self._keys, keys)
        known = np.zeros(len(keys), bool)
        inner = places < len(self._keys)
        known[inner] = self._keys[places[inner]] == keys[inner]
        old = places[known]
        better = vertices["confidence"][known] > self._vertices["confidence"][old]
        self._vertices[old[better]] = vertices[known][better]
        self._keys = np.insert(self._keys, places[~known], keys[~known])
        self._vertices = np.insert(self._vertices, places[~known], vertices[~known])


def positions(vertices: Vertices) -> npt.NDArray[np.floating[Any]]:
    """The points, [N, 3] float64."""
    return np.stack([vertices["x"], vertices["y"], vertices["z"]], axis=1).astype(np.float64)


def _keys_of(vertices: Vertices, voxel: float) -> tuple[Keys, npt.NDArray[np.bool_]]:
    # The number of each point's voxel, and which points are near enough to have one.
    cells = np.floor(positions(vertices) / voxel)
    near = (np.abs(cells + 0.5) < _HALF).all(axis=1)
    x, y, z = np.where(near[:, None], cells, 0).astype(np.int64).T + _HALF
    return (x << 42) | (y << 21) | z, near


def _thinned(keys: Keys, vertices: Vertices) -> tuple[Keys, Vertices]:
    # One point of the highest confidence for each key, sorted by key.
    order = np.lexsort((-vertices["confidence"], keys))
    keys = keys[order]
    first = np.ones(len(keys), bool)
    first[1:] = keys[1:] != keys[:-1]
    return keys[first], vertices[order[first]]
