"""Image motion is what the geometry says, and none where nothing is seen."""

import numpy as np
import pytest

from retinad.pipeline.geometry.flow import mean_flow


def test_flow_of_a_step_aside_and_of_no_depth() -> None:
    k = np.array([[100.0, 0, 20], [0, 100, 16], [0, 0, 1]])
    aside = np.eye(3, 4)
    aside[0, 3] = 0.2
    depth = np.full((32, 40), 2, np.float32)
    assert mean_flow(depth, k, np.eye(3, 4), aside) == pytest.approx(10, abs=1e-3)
    assert mean_flow(depth * np.float32(np.nan), k, np.eye(3, 4), aside) is None
