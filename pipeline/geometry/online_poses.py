"""One trajectory from the poses that a network gives relative to each frame, as frames arrive.

A row is what HorizonStream (arXiv 2605.23889) says of the frames of a window, seen from its last frame: for each slot a
pose encoding, see `pose`, but of the other direction: [R | t] maps coordinates of the last frame's camera, roughly, to
those of the slot's camera. The rows of the frames of a stream's first step are joint, so only the last of them counts.

A later frame's pose follows from each other slot of its row, whose frame's pose is known: the median of these counts.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .pose import Floats, rotation_from_quaternion
from .quaternion import conjugate, multiply, rotate, rotation_median


@dataclass(frozen=True, slots=True, eq=False)
class CameraPose:
    """A camera in the frame of reference of the last camera of the first step.

    Attributes:
        rotation: unit quaternion xyzw, camera from world.
        centre: the camera's position [3].
    """

    rotation: Floats
    centre: Floats

    @classmethod
    def of(cls, encoding: Floats) -> "CameraPose | None":
        """The pose of an encoding [9]; None if it is not finite, or its quaternion is zero."""
        norm = np.linalg.norm(encoding[3:7])
        if not np.isfinite(encoding[:7]).all() or not np.isfinite(norm) or norm < 1e-12:
            return None
        rotation = encoding[3:7] / norm
        return cls(rotation, -rotate(conjugate(rotation), encoding[:3]))

    def numbers(self) -> tuple[float, ...]:
        """The 7 numbers of rotation and centre."""
        return (*self.rotation.tolist(), *self.centre.tolist())

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> "CameraPose":
        """From the result of `numbers`.

        Raises:
            ValueError: they are not 7 finite numbers that begin with a unit quaternion.
        """
        values = np.asarray(numbers, np.float64)
        if values.shape != (7,) or not np.isfinite(values).all() or abs(np.linalg.norm(values[:4]) - 1) > 1e-6:
            raise ValueError(f"expected a unit quaternion and a position, got {list(numbers)}")
        return cls(values[:4], values[4:])


@dataclass(slots=True, eq=False)
class OnlinePoses:
    """The poses of one stream's frames, in the frame of reference of its first frame's camera.

    Attributes:
        window: W, the number of frames of a full window.
        origin: the first frame's pose; None before it, and if it is unknown.
        recent: the poses of the last W - 1 frames, None where unknown.
    """

    window: int
    origin: CameraPose | None = None
    recent: deque[CameraPose | None] = field(default_factory=lambda: deque[CameraPose | None]())

    def restart(self) -> None:
        """Forget all frames."""
        self.origin = None
        self.recent.clear()

    def first_step(self, row: npt.ArrayLike) -> list[Floats | None]:
        """Begin with the frames of the first step.

        Args:
            row: the last frame's row, [n, 9] for n frames.

        Returns:
            for each frame, the pose [3, 4], world from camera, or None if it is unknown.
        """
        self.restart()
        poses = [CameraPose.of(slot) for slot in np.asarray(row, np.float64)]
        self.origin = poses[0]
        for pose in poses:
            self._remember(pose)
        return [self._published(pose) for pose in poses]

    def add(self, row: npt.ArrayLike) -> Floats | None:
        """Add a later frame.

        Args:
            row: its row, [n, 9]; the first n - 1 slots stand for the n - 1 frames before it, oldest first.

        Returns:
            the pose [3, 4], world from camera, or None if it is unknown, as with a window of one frame.
        """
        slots = [CameraPose.of(slot) for slot in np.asarray(row, np.float64)[:-1]]
        known = list(self.recent)[len(self.recent) - len(slots) :]
        pairs = zip(slots, known, strict=True)
        pose = _joined([(slot, pose) for slot, pose in pairs if slot is not None and pose is not None])
        self._remember(pose)
        return self._published(pose)

    def _remember(self, pose: CameraPose | None) -> None:
        self.recent.append(pose)
        while len(self.recent) > self.window - 1:
            self.recent.popleft()

    def _published(self, pose: CameraPose | None) -> Floats | None:
        origin = self.origin
        if pose is None or origin is None:
            return None
        rotation = multiply(origin.rotation, conjugate(pose.rotation))
        centre = rotate(origin.rotation, pose.centre - origin.centre)
        return np.column_stack([rotation_from_quaternion(rotation), centre])


def _joined(pairs: Sequence[tuple[CameraPose, CameraPose]]) -> CameraPose | None:
    # The pose of a frame from those of others: of each in the frame's own coordinates, and in the world's.
    if not pairs:
        return None
    slots, known = ([pair[index] for pair in pairs] for index in range(2))
    turns, turned = np.stack([slot.rotation for slot in slots]), np.stack([pose.rotation for pose in known])
    # A slot's t is the frame's position in the coordinates of the slot's camera.
    offsets = rotate(conjugate(turned), -rotate(turns, np.stack([slot.centre for slot in slots])))
    centres = np.stack([pose.centre for pose in known]) + offsets
    rotation = rotation_median(multiply(conjugate(turns), turned))
    return CameraPose(rotation, np.sort(centres, axis=0)[(len(centres) - 1) // 2])
