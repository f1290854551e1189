"""Poses, intrinsics and similarities keep their conventions, and round trips lose nothing."""

import numpy as np
import pytest

from retinad.pipeline.geometry.pose import intrinsics, quaternion_from_rotation, source_intrinsics, world_from_camera
from retinad.pipeline.geometry.similarity import Similarity


@pytest.mark.parametrize("seed", range(20))
def test_round_trips(seed: int) -> None:
    random = np.random.default_rng(seed)
    q = random.normal(size=4)
    pose = world_from_camera([1, 2, 3, *(3 * q), 1, 1])
    assert pose is not None
    expected = q / np.linalg.norm(q) * (1 if q[3] >= 0 else -1)
    np.testing.assert_allclose(quaternion_from_rotation(pose[:, :3]), expected, atol=1e-12)
    there = Similarity(2.5, pose[:, :3], pose[:, 3])
    points = random.normal(size=(5, 3))
    np.testing.assert_allclose(there.inverse().points(there.points(points)), points, atol=1e-12)
    np.testing.assert_allclose(there.after(there).points(points), there.points(there.points(points)), atol=1e-12)
    assert Similarity.from_numbers(there.numbers()).numbers() == there.numbers()


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_no_pose_without_a_quaternion_and_no_intrinsics_without_an_angle(bad: float) -> None:
    assert world_from_camera([0, 0, 0, bad, bad, bad, bad, 1, 1]) is None
    assert intrinsics([0, 0, 0, 0, 0, 0, 1, bad, 1], 518, 378) is None


def test_intrinsics_follow_the_map_to_the_source() -> None:
    k = intrinsics([0, 0, 0, 0, 0, 0, 1, np.pi / 2, np.pi / 2], 518, 378)
    assert k is not None
    np.testing.assert_allclose(k, [[259, 0, 259], [0, 189, 189], [0, 0, 1]])
    moved = source_intrinsics(k, [[2, 0, 10], [0, 3, 20]])
    np.testing.assert_allclose(moved, [[518, 0, 528], [0, 567, 587], [0, 0, 1]])
