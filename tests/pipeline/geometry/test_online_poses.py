"""One trajectory from HorizonStream's rows, against the public implementation and from made-up cameras."""

from pathlib import Path

import numpy as np
import pytest

from retinad.pipeline.geometry.online_poses import CameraPose, OnlinePoses
from retinad.pipeline.geometry.pose import Floats, quaternion_from_rotation, rotation_from_quaternion
from retinad.pipeline.geometry.quaternion import conjugate, exp, log, multiply, rotate, rotation_median

DATA = Path(__file__).parents[2] / "data" / "golden"
TOLERANCE = 2e-5
"""Right implementations differ by 3e-6: the iteration stops at 1e-5, and the public starts are random."""


def camera_from_world(pose: Floats) -> Floats:
    """The encoding (t, quaternion) of the inverse of a pose [3, 4]."""
    back = pose[:, :3].T
    return np.concatenate((-back @ pose[:, 3], quaternion_from_rotation(back)))


def test_the_trajectory_agrees_with_the_public_one() -> None:
    golden = np.load(DATA / "horizon_parts.npz")
    rows, expected = golden["trajectory_rows"], golden["trajectory"]
    online = OnlinePoses(rows.shape[1])
    poses = [*online.first_step(rows[0]), *(online.add(row) for row in rows[1:])]
    found = np.stack([camera_from_world(pose) for pose in poses if pose is not None])
    assert len(found) == len(expected)
    assert np.abs(found - expected[:, :7]).max() / np.abs(expected[:, :7]).max() <= TOLERANCE


def random_camera(generator: np.random.Generator) -> CameraPose:
    return CameraPose(exp(generator.normal(size=3)), generator.normal(size=3))


def row_of(cameras: list[CameraPose], own: int) -> Floats:
    """What a perfect network says of some cameras, seen from the camera with the number `own`."""
    me = cameras[own]
    rows = [
        np.concatenate(
            (rotate(it.rotation, me.centre - it.centre), multiply(it.rotation, conjugate(me.rotation)), [1.0, 1.0])
        )
        for it in cameras
    ]
    return np.stack(rows)


@pytest.mark.parametrize("first", [1, 2, 4])
def test_perfect_rows_give_the_cameras_in_the_first_ones_frame_of_reference(first: int) -> None:
    """However many frames the first step has; and a wrong slot is outvoted."""
    generator, window = np.random.default_rng(3), 4
    cameras = [random_camera(generator) for _ in range(12)]
    online = OnlinePoses(window)
    poses = online.first_step(row_of(cameras[:first], first - 1))
    for number in range(first, 12):
        start = max(0, number - window + 1)
        row = row_of(cameras[start : number + 1], number - start)
        if number > window:
            row[number % 3, :7] = generator.normal(size=7)
        poses.append(online.add(row))
    for camera, pose in zip(cameras, poses, strict=True):
        assert pose is not None
        rotation = multiply(cameras[0].rotation, conjugate(camera.rotation))
        np.testing.assert_allclose(pose[:, :3], rotation_from_quaternion(rotation), atol=1e-5)
        np.testing.assert_allclose(
            pose[:, 3], rotate(cameras[0].rotation, camera.centre - cameras[0].centre), atol=1e-9
        )


def test_the_first_camera_is_the_origin_and_a_window_of_one_frame_has_no_later_pose() -> None:
    online, row = OnlinePoses(1), np.array([[1.0, 2, 3, 0, 0, 1, 1, 1, 1]])
    first = online.first_step(row)[0]
    assert first is not None
    np.testing.assert_allclose(first, np.eye(3, 4), atol=1e-12)
    assert online.add(row) is None


def test_slots_without_a_pose_do_not_count() -> None:
    generator = np.random.default_rng(4)
    cameras, online = [random_camera(generator) for _ in range(4)], OnlinePoses(3)
    first = row_of(cameras[:3], 2)
    first[1, 3:7] = 0
    assert [pose is None for pose in online.first_step(first)] == [False, True, False]
    row = row_of(cameras[1:], 2)
    assert online.add(row) is not None  # from the third camera alone
    row[:, 0] = np.nan
    assert online.add(row) is None


def test_logarithms_and_exponentials_are_inverse_up_to_half_a_turn() -> None:
    vectors = np.array([[0, 0, 0], [1e-9, 0, 0], [0.3, -0.2, 0.1], [0, 3.14159, 0]])
    np.testing.assert_allclose(log(exp(vectors)), vectors, atol=1e-12)
    np.testing.assert_allclose(log(-exp(vectors)), vectors, atol=1e-12)


def test_the_rotation_median_is_one_of_the_rotations_where_most_agree() -> None:
    generator = np.random.default_rng(5)
    agreed = exp(generator.normal(size=3))
    rotations = np.stack([*(exp(generator.normal(size=(2, 3)))), agreed, agreed, agreed])
    np.testing.assert_allclose(rotation_median(rotations), agreed, atol=1e-9)
    assert np.array_equal(rotation_median(agreed[None]), agreed)
