"""What is known of a camera's view in advance: its calibration, its scale, and parts of the picture to ignore."""

import hashlib
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from .frames import Size

LensModel = Literal["brown", "fisheye"]

BROWN_COUNTS = (0, 4, 5, 8)
"""Numbers of coefficients of the Brown-Conrady model: k1, k2, p1, p2, then k3, then k4, k5, k6."""

FISHEYE_COUNT = 4

_SIZE_TOLERANCE = 0.01
"""Relative difference between the scales of width and height up to which a calibration fits another frame size."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibrated camera.

    Attributes:
        size: width and height of the frames that it was calibrated with, in pixels.
        focal: fx and fy in pixels.
        centre: cx and cy in pixels, with pixel centres at whole numbers.
        model: the lens model.
        coefficients: the model's coefficients, see `BROWN_COUNTS`; for `fisheye` k1 to k4.
        file: where it was read from.
    """

    size: Size
    focal: tuple[float, float]
    centre: tuple[float, float]
    model: LensModel = "brown"
    coefficients: tuple[float, ...] = ()
    file: str = field(default="", compare=False, repr=False)

    @property
    def has_distortion(self) -> bool:
        """Whether the lens distorts at all."""
        return self.model == "fisheye" or any(self.coefficients)

    def fitted(self, size: Size) -> "Calibration":
        """The calibration for frames of another size with the same shape, such as another resolution of the camera.

        Raises:
            ValueError: the frames have another shape.
        """
        across, down = size[0] / self.size[0], size[1] / self.size[1]
        if abs(across / down - 1) > _SIZE_TOLERANCE:
            made, got = ("{}x{}".format(*sides) for sides in (self.size, size))
            raise ValueError(f"the calibration is for frames of {made} pixels, whose shape is not that of {got}")
        fx, fy = self.focal
        (cx, cy) = ((c + 0.5) * scale - 0.5 for c, scale in zip(self.centre, (across, down), strict=True))
        return Calibration(size, (fx * across, fy * down), (cx, cy), self.model, self.coefficients)


class MaskFill(StrEnum):
    """What the model sees where the picture is masked."""

    NONE = "none"
    """The picture as it is."""
    BLACK = "black"
    MEAN = "mean"
    """The mean colour of the network's training images, which is zero after normalisation."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Parts of the captured frames to ignore: the insides of polygons, or the black parts of a picture.

    Attributes:
        polygons: at least three corners (x, y) each, in pixels of the captured frames; empty for a picture.
        size: width and height of the picture, which is stretched to the frames' size; (0, 0) for polygons.
        rows: one bit per pixel of the picture, 1 where frames count; each row begins at a new byte, the highest bit
            first.
        file: where the picture was read from.
    """

    polygons: tuple[tuple[tuple[float, float], ...], ...] = ()
    size: Size = (0, 0)
    rows: bytes = field(default=b"", repr=False)
    file: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.rows) != self.size[1] * -(-self.size[0] // 8):
            raise ValueError(f"a mask of {self.size} has rows of whole bytes, got {len(self.rows)} bytes")
        for polygon in self.polygons:
            if len(polygon) < 3:
                raise ValueError(f"a polygon needs at least 3 corners, got {len(polygon)}")


@dataclass(frozen=True, slots=True)
class KnownDistance:
    """How far a camera moves between two moments of each trajectory.

    Attributes:
        metres: the distance between the two positions.
        from_s, to_s: the moments, in seconds after the trajectory's first frame.
    """

    metres: float
    from_s: float
    to_s: float

    def __post_init__(self) -> None:
        if not (0 < self.metres < math.inf and 0 <= self.from_s < self.to_s < math.inf):
            raise ValueError(f"expected metres above 0 and 0 <= from_s < to_s, got {self}")


@dataclass(frozen=True, slots=True)
class ViewConfig:
    """What is known of a camera's view. By default nothing is.

    Attributes:
        calibration: of the captured frames; the model then sees undistorted ones. None if unknown.
        mask: parts of the captured frames to ignore; None for none.
        mask_fill: what the model sees there.
        metres_per_unit: size of a trajectory's unit in metres; None if unknown.
        known_distance: from which the size of the unit is found instead; None if unknown.
    """

    calibration: Calibration | None = None
    mask: Mask | None = None
    mask_fill: MaskFill = MaskFill.NONE
    metres_per_unit: float | None = None
    known_distance: KnownDistance | None = None

    @property
    def changes_pictures(self) -> bool:
        """Whether the model sees other pictures than those captured."""
        fills = self.mask is not None and self.mask_fill is not MaskFill.NONE
        return fills or (self.calibration is not None and self.calibration.has_distortion)

    @property
    def fingerprint(self) -> str | None:
        """What determines how the model's pictures differ from the captured ones, as a short text; None if nothing."""
        if not self.changes_pictures:
            return None
        mask = None if self.mask is None or self.mask_fill is MaskFill.NONE else self.mask
        parts = repr((self.calibration, mask, self.mask_fill if mask else None)).encode()
        return hashlib.sha256(parts + (b"" if mask is None else mask.rows)).hexdigest()[:16]
