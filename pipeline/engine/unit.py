"""A stream's unit of length in metres: from the config, or from a known distance between two of its positions."""

from dataclasses import dataclass

import numpy as np

from ..frames import FrameStamp
from ..geometry.pose import Floats
from ..view_config import KnownDistance, ViewConfig

_LEAST = 1e-6
"""Distances below this fraction of the largest coordinate count as zero, since float32 poses cannot resolve them."""


@dataclass(slots=True, eq=False)
class StreamUnit:
    """The size of a trajectory's unit.

    Attributes:
        metres: metres per unit; None as long as it is unknown.
        reason: why it is unknown although the config says how to find it; None otherwise.
    """

    given: float | None
    distance: KnownDistance | None
    metres: float | None = None
    reason: str | None = None
    _began_s: float | None = None
    _first: Floats | None = None

    @classmethod
    def of(cls, view: ViewConfig, *, is_metric: bool = False) -> "StreamUnit":
        """The unit of a stream before its first frame. That of a metric model is the metre, unless the view differs."""
        given = 1.0 if is_metric and view.known_distance is None else None
        unit = cls(view.metres_per_unit or given, view.known_distance)
        unit.restart()
        return unit

    def restart(self) -> None:
        """Begin a new trajectory, whose unit may be another one."""
        self.metres, self.reason, self._began_s, self._first = self.given, None, None, None
        if self.metres is None and self.distance is not None:
            self.reason = f"the known distance is measured {self.distance.to_s:g} s after the trajectory's first frame"

    def observe(self, stamp: FrameStamp, position: Floats) -> None:
        """Take note of a frame's position [3], in the trajectory's own unit."""
        distance = self.distance
        if distance is None or self.metres is not None:
            return
        now_s = _time_s(stamp)
        if self._began_s is None:
            self._began_s = now_s
        age_s = now_s - self._began_s
        if self._first is None and age_s >= distance.from_s:
            self._first = position
        if self._first is not None and age_s >= distance.to_s:
            self._measure(position - self._first, float(np.abs(position).max()), distance)

    def _measure(self, moved: Floats, size: float, distance: KnownDistance) -> None:
        length = float(np.linalg.norm(moved))
        if length <= _LEAST * max(size, 1.0):
            self.reason = "the camera did not move between the two moments of known_distance"
            self.distance = None
            return
        self.metres, self.reason = distance.metres / length, None


def _time_s(stamp: FrameStamp) -> float:
    return (stamp.capture_monotonic_ns if stamp.pts_ns is None else stamp.pts_ns) / 1e9
