"""A similarity transform: x -> scale * rotation @ x + translation."""

from dataclasses import dataclass

import numpy as np

from .pose import Floats


@dataclass(frozen=True, eq=False)
class Similarity:
    """scale > 0, rotation [3, 3] float64, translation [3] float64 in units of the target frame."""

    scale: float
    rotation: Floats
    translation: Floats

    @classmethod
    def identity(cls) -> "Similarity":
        """Leaves everything where it is."""
        return cls(1.0, np.eye(3), np.zeros(3))

    @classmethod
    def from_numbers(cls, numbers: list[float]) -> "Similarity":
        """From the 13 numbers of `numbers`; ValueError if they are not 13 finite ones with scale > 0."""
        values = np.asarray(numbers, np.float64)
        if values.shape != (13,) or not np.isfinite(values).all() or values[0] <= 0:
            raise ValueError("expected 13 finite numbers, the first of them > 0")
        return cls(float(values[0]), values[1:10].reshape(3, 3), values[10:])

    def numbers(self) -> list[float]:
        """Scale, rotation by rows, translation: 13 plain numbers."""
        return [self.scale, *self.rotation.ravel().tolist(), *self.translation.tolist()]

    def points(self, points: Floats) -> Floats:
        """Points [N, 3], mapped."""
        return self.scale * points @ self.rotation.T + self.translation

    def pose(self, pose: Floats) -> Floats:
        """world_from_camera [3, 4] in the target frame: the rotation composed, the centre mapped."""
        return np.column_stack([self.rotation @ pose[:, :3], self.points(pose[None, :, 3])[0]])

    def after(self, first: "Similarity") -> "Similarity":
        """The similarity that applies `first`, then this one; its rotation is made orthonormal again."""
        u, _, vt = np.linalg.svd(self.rotation @ first.rotation)
        return Similarity(self.scale * first.scale, u @ vt, self.points(first.translation[None])[0])

    def inverse(self) -> "Similarity":
        """The similarity that undoes this one."""
        back = self.rotation.T
        return Similarity(1 / self.scale, back, -(back @ self.translation) / self.scale)
