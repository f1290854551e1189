"""Alignment finds a known similarity among outliers, and says when it cannot."""

import numpy as np

from retinad.pipeline.geometry.epochs import SharedFrame, align
from retinad.pipeline.geometry.pose import Floats, world_from_camera
from retinad.pipeline.geometry.similarity import Similarity


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
    assert found.reason is None
    np.testing.assert_allclose(found.similarity.numbers(), true.numbers(), atol=0.003)  # three times the noise


def walk(count: int, seed: int = 1) -> list[Floats]:
    random = np.random.default_rng(seed)
    return [pose_of(random.normal(size=7)) for _ in range(count)]


def test_without_depth_the_scale_is_that_of_the_way_between_cameras() -> None:
    turn = walk(1)[0]
    true = Similarity(0.25, turn[:, :3], turn[:, 3])
    found = align([SharedFrame(true.pose(pose), pose) for pose in walk(5, 2)], 4)
    assert found.reason is None
    np.testing.assert_allclose(found.similarity.numbers(), true.numbers(), atol=1e-9)


def test_a_camera_that_stood_still_without_depth_is_said() -> None:
    pose = walk(1)[0]
    found = align([SharedFrame(pose, pose)] * 3, 2)
    assert found.reason is not None
    assert "stood still" in found.reason
    assert found.similarity.scale == 1


def test_depth_without_a_valid_pixel_counts_as_none() -> None:
    empty, pose = np.full((4, 4), np.nan, np.float32), np.eye(3, 4)
    assert "the scale is unknown" in str(align([SharedFrame(pose, pose, empty, empty)], 0).reason)


def test_a_bad_fit_is_said_with_figures() -> None:
    depth = np.ones((4, 4), np.float32)
    frames = [SharedFrame(old, new, depth, depth) for old, new in zip(walk(6, 3), walk(6, 4), strict=True)]
    reason = align(frames, 5).reason
    assert reason is not None
    assert "camera positions differ by" in reason
    assert "degrees" in reason


def test_a_scale_out_of_range_is_limited_and_said() -> None:
    near, far = np.ones((4, 4), np.float32), np.full((4, 4), 1e5, np.float32)
    found = align([SharedFrame(np.eye(3, 4), np.eye(3, 4), far, near)], 0)
    assert found.similarity.scale == 1e3
    assert "out of range" in str(found.reason)


def test_fifty_epochs_add_up_and_stay_a_rotation() -> None:
    random = np.random.default_rng(5)
    steps = []
    for _ in range(50):
        turn = pose_of(random.normal(size=7))
        steps.append(Similarity(float(random.uniform(0.5, 2)), turn[:, :3], turn[:, 3]))
    total = Similarity.identity()
    for step in steps:
        total = total.after(step)
    points = random.normal(size=(5, 3))
    expected = points
    for step in reversed(steps):
        expected = step.points(expected)
    np.testing.assert_allclose(total.points(points), expected, rtol=1e-9, atol=1e-9 * total.scale)
    np.testing.assert_allclose(total.rotation @ total.rotation.T, np.eye(3), atol=1e-14)
