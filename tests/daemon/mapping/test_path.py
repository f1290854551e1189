"""A path has bounded memory, and its newest part is whole."""

import numpy as np
import pytest

from retinad.daemon.mapping.path import CameraPath, canonical

from .frames import frame


def test_a_path_of_any_length_takes_the_same_memory() -> None:
    path = CameraPath(max_poses=1000)
    before = path.nbytes
    for number in range(20_000):
        assert path.add(frame(number, (number, 0.0, 0.0)))
        assert len(path) <= 1000
    assert path.nbytes == before < 200 * 1000
    assert path.dropped + len(path) == 20_000
    kept = path.rows["pose"][:, 0, 3]
    np.testing.assert_array_equal(kept[-500:], np.arange(19_500, 20_000))
    assert kept[0] == 0
    steps = np.diff(kept)
    assert (steps > 0).all()
    assert (np.diff(np.log2(steps)) <= 0).all(), "the older, the coarser"


def test_a_short_path_is_kept_whole() -> None:
    path = CameraPath(max_poses=10)
    for number in range(10):
        path.add(frame(number, (0.0, 0.5 * number, 0.0)))
    assert (len(path), path.dropped, path.length) == (10, 0, 4.5)
    np.testing.assert_array_equal(path.rows["time_ns"], np.arange(10) * 10**8)


def test_frames_without_a_pose_are_counted_and_left_out() -> None:
    path = CameraPath()
    assert [path.add(frame(number, lost=number == 1)) for number in range(3)] == [True, False, True]
    assert (len(path), path.lost) == (2, 1)
    path.clear()
    assert (len(path), path.lost, path.length) == (0, 0, 0)


def test_a_limit_too_small_to_be_thinned_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 4, got 3"):
        CameraPath(max_poses=3)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((0.5, 0.5, 0.5, -0.5), (-0.5, -0.5, -0.5, 0.5)),
        ((0.6, 0.0, 0.0, 0.8), (0.6, 0.0, 0.0, 0.8)),
        ((-1.0, 0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0)),
        ((0.0, -0.6, 0.8, -1e-17), (0.0, 0.6, -0.8, 1e-17)),
        ((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_of_two_equal_quaternions_always_the_same_one_is_chosen(
    given: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    """At half a turn w is 0 but for rounding, so its sign is no guide there."""
    np.testing.assert_array_equal(canonical(np.array(given)), expected)
