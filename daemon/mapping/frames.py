"""What a service and an extraction have in common: frames with poses, and which of them share a frame of reference."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from retinad.client.points import DepthView

Floats = npt.NDArray[np.floating[Any]]
Colours = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class PosedFrame:
    """One frame of a stream.

    Attributes:
        world_epoch: the epoch whose frame of reference is the trajectory's.
        epoch, epoch_frame: number of the stream's memory, and of the frame within it.
        time_ns: time of capture in nanoseconds since 1970 or, in an extraction, since the recording's beginning.
        unit: name of the unit of length.
        doubt: why the epoch's alignment should not be trusted; None if it is good.
        pose: world from camera, [3, 4]; None if it is unknown.
        view: the depth map; None if the frame has none, or no camera matrix.
        picture: returns the captured frame, uint8 [height, width, 3] in RGB; None if it cannot be had.
    """

    world_epoch: int
    epoch: int
    epoch_frame: int
    time_ns: int
    unit: str
    doubt: str | None
    pose: Floats | None
    view: DepthView | None = None
    picture: Callable[[], Colours] | None = None

    def continues(self, before: "PosedFrame") -> bool:
        """Whether this frame belongs to the same trajectory as an earlier one.

        It does across a restart of the service that kept the stream's memory. A memory that begins again at a lower
        number is another one, even if its trajectory has the same number.
        """
        return self.world_epoch == before.world_epoch and (self.epoch, self.epoch_frame) > (
            before.epoch,
            before.epoch_frame,
        )


@dataclass(frozen=True, slots=True)
class FrameSource:
    """Where frames come from.

    Attributes:
        name: what the frames are of, for messages.
        frames: yields frames in order, or None after a time without one; ends if no more will come.
        clock: what `PosedFrame.time_ns` counts from.
    """

    name: str
    frames: Iterator[PosedFrame | None]
    clock: str


def finite_pose(pose: npt.NDArray[np.generic]) -> Floats | None:
    """The pose as float64; None if any number is not finite, or it is not [3, 4]."""
    numbers: Floats = pose.astype(np.float64)
    return numbers if numbers.shape == (3, 4) and bool(np.isfinite(numbers).all()) else None
