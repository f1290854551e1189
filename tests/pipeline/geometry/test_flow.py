"""The motion of the image is what the geometry says, and unknown where nothing can be followed."""

from dataclasses import replace

import numpy as np
import pytest

from retinad.pipeline.geometry.flow import DepthView, mean_flow
from retinad.pipeline.geometry.pose import Floats, rotation_from_quaternion

K = np.array([[100.0, 0, 20], [0, 100, 16], [0, 0, 1]])
STILL = np.eye(3, 4)
WALL = DepthView(np.full((33, 41), 2, np.float32), 1, K, STILL)


def moved(x: float = 0.0, z: float = 0.0) -> Floats:
    pose = STILL.copy()
    pose[:, 3] = x, 0, z
    return pose


def test_a_camera_that_stands_sees_no_motion() -> None:
    assert mean_flow(WALL, STILL) == pytest.approx(0, abs=1e-9)


def test_a_step_aside_moves_all_pixels_by_focal_length_times_step_over_depth() -> None:
    assert mean_flow(WALL, moved(x=0.2)) == pytest.approx(100 * 0.2 / 2)


def test_a_step_forward_moves_pixels_away_from_the_centre() -> None:
    """Depth 2 becomes 1: each pixel moves as far as it is from the centre."""
    rows, columns = np.mgrid[:33, :41]
    assert mean_flow(WALL, moved(z=1.0)) == pytest.approx(np.hypot(columns - 20, rows - 16).mean())


def test_a_turn_in_place_does_not_depend_on_depth() -> None:
    """The pose is world from camera: a turn to the right moves the image to the left, by about f times the angle."""
    pose = np.column_stack([rotation_from_quaternion(np.array([0, np.sin(0.01), 0, np.cos(0.01)])), np.zeros(3)])
    near, far = (mean_flow(replace(WALL, depth=np.full((33, 41), depth, np.float32)), pose) for depth in (1.0, 50.0))
    assert near == pytest.approx(far)
    assert near == pytest.approx(100 * 0.02, rel=0.05)


def test_every_second_pixel_gives_the_same_motion_in_pixels_of_the_image() -> None:
    sparse = DepthView(WALL.depth[::2, ::2], 2, K, STILL)
    assert mean_flow(sparse, moved(x=0.2)) == pytest.approx(10)


def test_only_known_depths_count_and_without_any_the_motion_is_unknown() -> None:
    depth = np.full((33, 41), np.nan, np.float32)
    depth[0, 0], depth[5, 7], depth[6, 8] = 0, 4, np.inf
    assert mean_flow(replace(WALL, depth=depth), moved(x=0.2)) == pytest.approx(100 * 0.2 / 4)
    depth[5, 7] = -1
    assert mean_flow(replace(WALL, depth=depth), moved(x=0.2)) is None


def test_points_behind_the_camera_have_no_place_in_the_image() -> None:
    assert mean_flow(WALL, moved(z=3.0)) is None
