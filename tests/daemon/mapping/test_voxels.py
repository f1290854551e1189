"""A cloud has one point in each voxel, the surest, and bounded memory."""

import numpy as np
import pytest

from retinad.daemon.mapping.voxels import MAX_POINTS, VoxelCloud, positions

from .frames import Floats


def scattered(count: int, seed: int, size: float = 1.0) -> tuple[Floats, Floats]:
    random = np.random.default_rng(seed)
    points = random.uniform(-size, size, (count, 3)).astype(np.float32)
    return points, random.permutation(count).astype(np.float32) + 1 + 0.001 * seed


def test_a_voxel_keeps_its_surest_point_whichever_frame_it_came_from() -> None:
    """Compared with a dictionary."""
    cloud, expected = VoxelCloud(0.25), dict[tuple[int, ...], tuple[float, tuple[float, ...], int]]()
    for seed in range(4):
        points, confidence = scattered(500, seed)
        colours = np.full((500, 3), 40 * seed, np.uint8)
        cloud.add(points, confidence, colours)
        for point, sure in zip(points.tolist(), confidence.tolist(), strict=True):
            cell = tuple(int(np.floor(part / 0.25)) for part in point)
            if cell not in expected or sure > expected[cell][0]:
                expected[cell] = sure, tuple(point), 40 * seed
    found = {
        tuple(int(np.floor(part / 0.25)) for part in place): (float(row["confidence"]), tuple(place), int(row["red"]))
        for place, row in zip(positions(cloud.vertices).tolist(), cloud.vertices, strict=True)
    }
    assert len(cloud) == len(expected)
    assert found == expected


def test_points_of_equal_confidence_do_not_move() -> None:
    cloud = VoxelCloud(1.0)
    cloud.add(np.array([[0.2, 0.2, 0.2]], np.float32), np.array([2.0]))
    cloud.add(np.array([[0.8, 0.8, 0.8]], np.float32), np.array([2.0]))
    np.testing.assert_allclose(positions(cloud.vertices), [[0.2, 0.2, 0.2]], rtol=1e-6)


def test_points_on_both_sides_of_the_origin_are_apart() -> None:
    """Rounding towards zero would make the voxel at the origin twice as wide."""
    cloud = VoxelCloud(1.0)
    signs = np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)], np.float32)
    cloud.add(signs, np.ones(8))
    assert len(cloud) == 8


def test_a_cloud_of_any_length_stays_within_its_memory_and_keeps_the_whole_scene() -> None:
    cloud = VoxelCloud(0.001, max_points=5000)
    for seed in range(60):
        points, confidence = scattered(2000, seed, size=1 + 0.05 * seed)
        cloud.add(points, confidence)
        assert len(cloud) <= 5000
        assert cloud.nbytes <= 27 * 5000
    doublings = np.log2(cloud.voxel / 0.001)
    assert doublings == round(doublings) > 0
    cells = np.floor(positions(cloud.vertices) / cloud.voxel)
    assert len(np.unique(cells, axis=0)) == len(cloud), "thinned as a whole"
    assert np.ptp(positions(cloud.vertices), axis=0).min() > 7, "nothing is cut off"
    assert len(cloud) > 5000 / 8 / 2, "and no coarser than needed: a voxel doubles along three axes"


def test_a_frame_larger_than_the_limit_is_thinned_too() -> None:
    cloud = VoxelCloud(1e-6, max_points=1)
    cloud.add(*scattered(1000, 0))
    assert len(cloud) == 1
    assert cloud.vertices["confidence"][0] == 1000


def test_points_too_far_for_a_number_are_counted_and_left_out() -> None:
    cloud = VoxelCloud(0.5)
    far = 0.5 * 2**20
    points = np.array([[0, 0, far], [0, -far - 1, 0], [np.inf, 0, 0], [0, 0, far - 0.5], [-far, 0, 0]], np.float32)
    cloud.add(points, np.ones(5))
    assert (len(cloud), cloud.too_far) == (2, 3)
    cloud.clear()
    assert (len(cloud), cloud.too_far) == (0, 0)


def test_frames_without_points_change_nothing() -> None:
    cloud = VoxelCloud(0.5)
    cloud.add(np.zeros((0, 3), np.float32), np.zeros(0))
    assert len(cloud) == 0


@pytest.mark.parametrize(("voxel", "most"), [(0.0, 1), (-1.0, 1), (np.nan, 1), (np.inf, 1), (1.0, 0)])
def test_sizes_that_make_no_sense_are_refused(voxel: float, most: int) -> None:
    with pytest.raises(ValueError, match="voxel must be > 0"):
        VoxelCloud(voxel, most)


def test_the_default_limit_is_within_the_memory_that_its_text_says() -> None:
    assert MAX_POINTS * 27 == 54e6
