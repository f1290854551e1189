"""Draws PNG files. The one module here that needs OpenCV, which the base install lacks."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..exit_codes import ExitCode, JobError
from .drawing import Disc, Drawing, Line, Place, Text

_SHIFT = 4
"""OpenCV takes coordinates as whole sixteenths of a pixel."""
_FONT_PX = 22.0
"""Height of OpenCV's plain font at scale 1, in the sense of a font size."""
_OFFSET = {"start": 0.0, "middle": 0.5, "end": 1.0}


def check_opencv() -> None:
    """Find out whether PNG files can be written.

    Raises:
        JobError: OpenCV is not installed.
    """
    _cv2()


def png(drawing: Drawing) -> bytes:
    """The drawing as a PNG file. Letters beyond ASCII are shown as `?`.

    Raises:
        JobError: OpenCV is not installed, or cannot encode the image.
    """
    cv2 = _cv2()
    sheet = np.full((drawing.height, drawing.width, 3), 255, np.uint8)
    for shape in drawing.shapes:
        match shape:
            case Line(points, colour, width):
                line = np.array([_fixed(place) for place in points], np.int32).reshape(-1, 1, 2)
                thickness = max(1, round(width))
                cv2.polylines(sheet, [line], False, colour[::-1], thickness, cv2.LINE_AA, _SHIFT)
            case Disc(centre, radius, colour):
                cv2.circle(sheet, _fixed(centre), round(radius * 2**_SHIFT), colour[::-1], -1, cv2.LINE_AA, _SHIFT)
            case Text((x, y), text, size, anchor, colour):
                plain = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text)
                scale = size / _FONT_PX
                (width, _), _ = cv2.getTextSize(plain, cv2.FONT_HERSHEY_SIMPLEX, scale, 1)
                at = round(x - _OFFSET[anchor] * width), round(y)
                cv2.putText(sheet, plain, at, cv2.FONT_HERSHEY_SIMPLEX, scale, colour[::-1], 1, cv2.LINE_AA)
    done, encoded = cv2.imencode(".png", sheet)
    if not done:
        raise JobError(ExitCode.FAULT, "OpenCV cannot encode the PNG")
    data: npt.NDArray[np.uint8] = encoded
    return data.tobytes()


def _fixed(place: Place) -> tuple[int, int]:
    x, y = place
    return round(x * 2**_SHIFT), round(y * 2**_SHIFT)


def _cv2() -> Any:
    try:
        import cv2
    except ImportError as error:
        raise JobError(
            ExitCode.UNAVAILABLE,
            "a PNG needs OpenCV, which is not installed: write an .svg, which needs nothing, or run "
            "pip install opencv-python-headless",
        ) from error
    return cv2
