"""One trajectory across epochs: poses and depths stay in the first epoch's frame of reference and unit."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from retinad.pipeline.engine.pose_outputs import ENCODING
from retinad.pipeline.engine.trajectory import Trajectory
from retinad.pipeline.frames import Features, FrameStamp, Output, OutputKind, OutputTensor
from retinad.pipeline.geometry.pose import Floats, quaternion_from_rotation, world_from_camera
from retinad.pipeline.geometry.similarity import Similarity

from .heads_rig import numbers

SIZE = (28, 14)
DEPTH = Output("depth", (14, 28), "float16", OutputKind.DEPTH)


def true_pose(number: int) -> Floats:
    """A camera that walks a curve and turns."""
    half = 0.02 * number
    pose = world_from_camera(
        [0.1 * number, 0.02 * np.sin(number), 0.05 * number, 0, np.sin(half), 0, np.cos(half), 1, 1]
    )
    assert pose is not None
    return pose


def true_depth(number: int) -> Floats:
    rows, columns = np.mgrid[:14.0, :28.0]
    depth: Floats = 2 + 0.05 * rows + 0.03 * columns + 0.1 * np.cos(number)
    return depth


def record(number: int, epoch: int, from_epoch: Similarity, *, depth: bool = True, noise: float = 0.0) -> Features:
    """What a network without error says of a frame, in an epoch whose own frame maps to the world by `from_epoch`."""
    to_epoch = from_epoch.inverse()
    pose = to_epoch.pose(true_pose(number))
    random = np.random.default_rng(number)
    pose[:, 3] += noise * random.normal(size=3)
    encoding = np.array([*pose[:, 3], *quaternion_from_rotation(pose[:, :3]), 1.0, 1.2], np.float32)
    tensors = [OutputTensor(ENCODING, encoding)]
    if depth:
        tensors.append(OutputTensor(DEPTH, (to_epoch.scale * true_depth(number)).astype(np.float16)))
    stamp = FrameStamp("a", 0, number, 0, 0, None, SIZE)
    to_source = ((2.0, 0.0, 0.5), (0.0, 2.0, 0.5))
    return Features(stamp, epoch, 0, True, frozenset(), SIZE, (1, 2), to_source, tuple(tensors))


def of_epochs(count: int) -> list[Similarity]:
    random = np.random.default_rng(3)
    found = [Similarity.identity()]
    for _ in range(count - 1):
        turn = world_from_camera([*random.normal(size=7), 1, 1])
        assert turn is not None
        found.append(Similarity(float(random.uniform(0.3, 3)), turn[:, :3], turn[:, 3]))
    return found


def walk(
    trajectory: Trajectory, epochs: Sequence[Similarity], *, depth: bool = True, noise: float = 0.0
) -> list[Features]:
    """Ten new frames an epoch; each epoch but the first begins with the last four of the previous one."""
    published: list[Features] = []
    for epoch, own in enumerate(epochs):
        shared = range(10 * epoch - 4, 10 * epoch) if epoch else range(0)
        if epoch:
            trajectory.begin_epoch([record(n, epoch, own, depth=depth, noise=noise) for n in shared])
        new = range(10 * epoch, 10 * epoch + 10)
        published += [trajectory.publish(record(n, epoch, own, depth=depth, noise=noise)) for n in new]
    return published


@pytest.mark.parametrize("depth", [True, False])
def test_poses_of_all_epochs_are_in_the_first_ones_frame(depth: bool) -> None:
    published = walk(Trajectory(4), of_epochs(6), depth=depth)
    for number, features in enumerate(published):
        pose = numbers(features, "pose/world_from_camera")
        np.testing.assert_allclose(pose, true_pose(number), rtol=0, atol=0.02)  # float16 depth: 5e-4 an epoch
        assert features.geometry is not None
        assert features.geometry.alignment.reason is None


def test_depth_is_in_the_first_epochs_unit_and_the_raw_values_follow_from_the_header() -> None:
    epochs = of_epochs(4)
    published = walk(Trajectory(4), epochs)
    for number, features in enumerate(published):
        depth = numbers(features, "depth").astype(float)
        np.testing.assert_allclose(depth, true_depth(number), rtol=5e-3)
        assert features.geometry is not None
        alignment = features.geometry.alignment
        np.testing.assert_allclose(alignment.scale, epochs[number // 10].scale, rtol=5e-3)
        raw = true_depth(number) / epochs[number // 10].scale
        np.testing.assert_allclose(depth / alignment.scale, raw, rtol=5e-3)


def test_the_first_epoch_is_published_as_it_is() -> None:
    given = record(3, 0, Similarity.identity())
    found = Trajectory(4).publish(given)
    assert numbers(found, "depth") is numbers(given, "depth")
    assert found.geometry is not None
    assert found.geometry.alignment.scale == 1
    assert found.geometry.alignment.residual is None


def test_a_bad_alignment_is_said_and_still_published() -> None:
    published = walk(Trajectory(4), of_epochs(2), noise=2.0)
    assert published[0].geometry is not None
    assert published[0].geometry.alignment.reason is None
    assert published[-1].geometry is not None
    alignment = published[-1].geometry.alignment
    assert alignment.residual is not None
    assert alignment.residual > 0.1
    assert alignment.reason is not None
    assert "camera positions differ" in alignment.reason


def test_an_epoch_that_begins_empty_begins_a_new_trajectory() -> None:
    trajectory = Trajectory(4)
    walk(trajectory, of_epochs(2))
    trajectory.restart(2)
    found = trajectory.publish(record(0, 2, Similarity.identity()))
    assert found.geometry is not None
    assert (found.geometry.world_epoch, found.geometry.alignment.scale) == (2, 1)


def test_an_epoch_whose_frames_have_no_pose_is_said() -> None:
    trajectory = Trajectory(4)
    spoilt = record(0, 0, Similarity.identity())
    nothing = replace(spoilt, tensors=(OutputTensor(ENCODING, np.zeros(9, np.float32)),))
    for _ in range(4):
        trajectory.publish(nothing)
    trajectory.begin_epoch([nothing] * 4)
    found = trajectory.publish(spoilt)
    assert found.geometry is not None
    assert "share no frame with a pose" in str(found.geometry.alignment.reason)


def test_a_saved_trajectory_continues_as_if_nothing_had_happened() -> None:
    epochs = of_epochs(3)
    first = Trajectory(4)
    walk(first, epochs[:2])
    second = Trajectory(4)
    second.restore(first.saved(), first.depths)
    shared = [record(number, 2, epochs[2]) for number in range(16, 20)]
    for trajectory in (first, second):
        trajectory.begin_epoch(shared)
    assert first.geometry() == second.geometry()


def test_a_camera_matrix_for_the_source_follows_the_resize() -> None:
    features = Trajectory(0).publish(record(0, 0, Similarity.identity()))
    camera, source = numbers(features, "pose/intrinsics"), numbers(features, "pose/source_intrinsics")
    np.testing.assert_allclose(source[:2], [[2 * camera[0, 0], 0, 28.5], [0, 2 * camera[1, 1], 14.5]], rtol=1e-6)


def test_records_of_features_alone_are_untouched() -> None:
    features = replace(record(0, 0, Similarity.identity()), tensors=())
    assert Trajectory(0).publish(features) is features
