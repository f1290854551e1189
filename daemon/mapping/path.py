"""A camera's path in bounded memory, however long the stream runs."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from retinad.pipeline.geometry.pose import quaternion_from_rotation

from .frames import PosedFrame

POSES = np.dtype(
    [
        ("time_ns", "<i8"),
        ("pose", "<f4", (3, 4)),
        ("quaternion", "<f8", (4,)),
        ("epoch", "<i8"),
        ("doubtful", "?"),
    ]
)
"""What is kept of a pose: 97 bytes. `quaternion` is x y z w."""

MAX_POSES = 100_000
"""Default limit on the poses that are kept: an hour of 28 frames/s whole, in 10 MB."""

Rows = npt.NDArray[np.void]


@dataclass(eq=False)
class CameraPath:
    """The poses of one trajectory.

    When they exceed the limit, every second pose of the older half is dropped. So the newest half of the limit is
    always whole, and the path grows coarser with age. The first pose stays.

    Attributes:
        max_poses: limit on the poses that are kept, at least 4.
        dropped: number of poses that were dropped.
        lost: number of frames without a pose.
        unit: name of the unit of length.
    """

    max_poses: int = MAX_POSES
    dropped: int = 0
    lost: int = 0
    unit: str = "stream"
    _rows: Rows = field(init=False, repr=False)
    _count: int = 0

    def __post_init__(self) -> None:
        if self.max_poses < 4:
            raise ValueError(f"max_poses must be at least 4, got {self.max_poses}")
        self._rows = np.zeros(self.max_poses, POSES)

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Rows:
        """The poses, oldest first: [N] of `POSES`. A view, valid until the next `add`."""
        return self._rows[: self._count]

    @property
    def nbytes(self) -> int:
        """Memory of the poses in bytes. It never changes."""
        return self._rows.nbytes

    @property
    def length(self) -> float:
        """Length of the path in the stream's unit, through the poses that are kept."""
        return float(np.linalg.norm(np.diff(centres(self.rows), axis=0), axis=1).sum())

    def add(self, frame: PosedFrame) -> bool:
        """Add a frame's pose.

        Returns:
            whether the frame has a pose.
        """
        self.unit = frame.unit
        if frame.pose is None:
            self.lost += 1
            return False
        if self._count == self.max_poses:
            self._thin()
        quaternion = canonical(quaternion_from_rotation(frame.pose[:, :3].astype(np.float64)))
        row = (frame.time_ns, frame.pose, quaternion, frame.epoch, frame.doubt is not None)
        self._rows[self._count] = row
        self._count += 1
        return True

    def clear(self) -> None:
        """Forget all poses, for a new trajectory."""
        self._count = self.dropped = self.lost = 0

    def _thin(self) -> None:
        half = self._count // 2
        older = self._rows[:half:2].copy()
        newer = self._rows[half : self._count].copy()
        kept = len(older) + len(newer)
        self._rows[: len(older)], self._rows[len(older) : kept] = older, newer
        self.dropped += self._count - kept
        self._count = kept


def centres(rows: Rows) -> npt.NDArray[np.floating[Any]]:
    """The camera's positions, [N, 3] float64."""
    found: npt.NDArray[np.float64] = rows["pose"][:, :, 3].astype(np.float64)
    return found


def canonical(quaternion: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The one of the two quaternions x y z w of a rotation that has w > 0 or, for half a turn, the first part > 0."""
    w_first = quaternion[[3, 0, 1, 2]]
    first = w_first[np.abs(w_first) > 1e-9][:1]
    return -quaternion if first.size and first[0] < 0 else quaternion
