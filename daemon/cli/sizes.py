"""Sizes of pictures as a command line gives them."""

import re

from retinad.pipeline.frames import Size

ANY = range(1, 65_537)
"""Sides of a camera's pictures, as in the config."""

SYNTHETIC = range(8, 8193)
"""Sides of a synthetic picture."""


def parse_size(text: str, sides: range) -> Size:
    """`1920x1080` as a width and a height.

    Raises:
        ValueError: it is no such text, or a side is too short or too long.
    """
    numbers = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text, re.ASCII)
    size = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not all(side in sides for side in size):
        limits = f"{sides[0]} to {sides[-1]}"
        raise ValueError(f"expected a size such as 1920x1080, with sides of {limits}, got {text!r}")
    return size
