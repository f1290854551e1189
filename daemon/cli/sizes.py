"""Parses frame sizes on the command line."""

import re

from retinad.pipeline.frames import Size

ANY = range(1, 65_537)
"""Allowed widths and heights of a camera's frames in pixels, as in the config."""

SYNTHETIC = range(8, 8193)
"""Allowed widths and heights of a synthetic frame in pixels."""


def parse_size(text: str, sides: range) -> Size:
    """Parse a size such as `1920x1080` to width and height.

    Raises:
        ValueError: the text is not a size, or a side is out of range.
    """
    numbers = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text, re.ASCII)
    size = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not all(side in sides for side in size):
        limits = f"{sides[0]} to {sides[-1]}"
        raise ValueError(f"expected a size such as 1920x1080, with sides of {limits}, got {text!r}")
    return size
