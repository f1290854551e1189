"""Test deadlines, scaled by one setting so that a slow or loaded machine does not fail them.

`TEST_TIME_SCALE=3 make test` triples every deadline that goes through `scaled`, and pytest's own timeout of
each test. The default is 1.0.

Scale how long a test waits before it gives up, and how long the product may take (it stops within 3 s). Do not scale
rates, sleeps that provoke a fault, or timeouts that are themselves under test.
"""

import math
import os
from collections.abc import Mapping

VARIABLE = "TEST_TIME_SCALE"


def read_scale(environment: Mapping[str, str]) -> float:
    """The configured scale: 1.0 if the variable is unset or empty.

    Raises:
        ValueError: the value is not a finite number above 0.
    """
    text = environment.get(VARIABLE) or "1.0"
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not 0 < scale < math.inf:
        raise ValueError(f"{VARIABLE} must be a number above 0, not {text!r}")
    return scale


SCALE = read_scale(os.environ)


def scaled(seconds: float) -> float:
    """The deadline for this machine, given the one for an idle machine with 2 cores."""
    return seconds * SCALE
