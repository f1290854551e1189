"""Alignment finds a known similarity among outliers, and says when it cannot."""

import numpy as np

from retinad.pipeline.geometry.epochs import SharedFrame, align
from retinad.pipeline.geometry.pose import Floats, world_from_camera
from retinad.pipeline.geometry.similarity import Similarity
from retinad.pipeline.geometry.unproject import unproject


def pose_of(numbers: Floats) -> Floats:
    pose = world_from_camera([*numbers, 1, 1])
    assert pose is not None
    return pose


def test_a_known_similarity_is_found_with_outliers() -> None:
    random = np.random.default_rng(0)
    turn = pose_of(random.normal(size=7))
    true = Similarity(2.5, turn[:, :3], turn[:, 3])
    frames = []
    for number in range(10):
        new = pose_of(random.normal(size=7))
        old = true.pose(new)
        old[:, 3] += random.normal(size=3) * (5 if number < 2 else 0.001)
        depth = random.uniform(1, 4, (20, 30)).astype(np.float32)
        old_depth = np.where(random.random(depth.shape) < 0.2, np.float32(50), depth * np.float32(2.5))
        frames.append(SharedFrame(old, new, old_depth, depth))
    found = align(frames, 9)
    assert found.good, found.reason
    np.testing.assert_allclose(found.similarity.numbers(), true.numbers(), atol=0.003)  # three times the noise


def test_no_valid_depth_is_bad() -> None:
    empty = np.full((4, 4), np.nan, np.float32)
    pose = np.eye(3, 4)
    assert not align([SharedFrame(pose, pose, empty, empty)], 0).good
    assert not align([], 0).good


def test_true_depth_and_pose_agree_along_the_camera_axis() -> None:
    k = np.array([[100.0, 0, 10], [0, 100, 8], [0, 0, 1]])
    nearer = np.eye(3, 4)
    nearer[2, 3] = 1
    far = unproject(np.full((16, 20), 3, np.float32), k)
    near = unproject(np.full((16, 20), 2, np.float32), k, nearer)
    np.testing.assert_allclose(near[..., 2], far[..., 2])
