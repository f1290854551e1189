"""TUM and KITTI files hold the poses that were added: checked by other formulas than those that wrote them."""

import numpy as np
import pytest

from retinad.daemon.mapping.path import CameraPath
from retinad.daemon.mapping.pose_files import kitti_lines, tum_lines

from .frames import Floats, frame, rotation_about, turned_by

AXES = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0.6, 0, -0.8], [-2 / 7, 3 / 7, 6 / 7]])
ANGLES = (0.0, 1e-4, 30.0, 90.0, 179.99, 180.0, 180.01, 270.0)
TURNS = [(axis, angle) for axis in AXES for angle in ANGLES]


@pytest.fixture
def path() -> CameraPath:
    made = CameraPath()
    for number, (axis, angle) in enumerate(TURNS):
        at = (0.1 * number, -3.0, 1e-5 * number)
        made.add(frame(number, at, rotation=rotation_about(axis, angle), time_ns=1_700_000_000_000_000_001 + number))
    return made


def numbers(line: str) -> Floats:
    return np.array([float(word) for word in line.split()])


def test_a_tum_line_has_the_pose_as_a_position_and_a_quaternion(path: CameraPath) -> None:
    lines = [line for line in tum_lines(path, "robot", "1970-01-01 UTC") if not line.startswith("#")]
    for number, (line, (axis, angle)) in enumerate(zip(lines, TURNS, strict=True)):
        values = numbers(line)
        assert values.shape == (8,)
        # Nine digits hold any float32.
        np.testing.assert_array_equal(
            values[1:4].astype(np.float32), np.array([0.1 * number, -3, 1e-5 * number], np.float32)
        )
        quaternion = values[4:]
        assert np.linalg.norm(quaternion) == pytest.approx(1, abs=1e-8)
        assert quaternion[3] >= -1e-9
        for vector in np.eye(3):
            np.testing.assert_allclose(
                turned_by(quaternion, vector), rotation_about(axis, angle) @ vector, rtol=0, atol=1e-7
            )
        # The half angle's own definition, with the sign that makes w positive. A small rotation's float32 matrix holds
        # the angle to 1e-7.
        half = np.radians(angle) / 2
        expected = np.append(np.sin(half) * axis, np.cos(half))
        if abs(expected[3]) > 1e-9:
            np.testing.assert_allclose(quaternion, expected * np.sign(expected[3]), rtol=0, atol=1e-7)


def test_half_a_turn_has_one_sign(path: CameraPath) -> None:
    """Both signs are the same rotation; the first part that is not 0 is positive."""
    lines = [line for line in tum_lines(path, "robot", "") if not line.startswith("#")]
    halves = [numbers(line)[4:] for line, (_, angle) in zip(lines, TURNS, strict=True) if angle == 180]
    np.testing.assert_allclose(np.abs(halves), np.abs(np.column_stack([AXES, np.zeros(len(AXES))])), atol=1e-7)
    assert all(quaternion[np.abs(quaternion) > 1e-6][0] > 0 for quaternion in halves)


def test_tum_timestamps_are_seconds_to_the_nanosecond(path: CameraPath) -> None:
    """As float64 they would be rounded to 240 ns."""
    lines = [line for line in tum_lines(path, "robot", "") if not line.startswith("#")]
    assert [line.split()[0] for line in lines[:2]] == ["1700000000.000000001", "1700000000.000000002"]
    early = CameraPath()
    early.add(frame(0, time_ns=-500_000_000))
    assert float(list(tum_lines(early, "robot", ""))[-1].split()[0]) == -0.5


def test_the_comments_of_a_tum_file_say_what_is_missing() -> None:
    path = CameraPath(max_poses=4)
    for number in range(6):
        path.add(frame(number, lost=number == 3))
    comments = [line for line in tum_lines(path, "robot\n1 2 3", "1970") if line.startswith("#")]
    assert comments == [
        "# robot?1 2 3: world from camera, in the unit stream; seconds since 1970",
        "# 1 frames had no pose",
        "# thinned: 1 of the older poses are left out",
        "# timestamp tx ty tz qx qy qz qw",
    ]


def test_a_kitti_line_has_the_pose_by_rows(path: CameraPath) -> None:
    lines = list(kitti_lines(path))
    for number, (line, (axis, angle)) in enumerate(zip(lines, TURNS, strict=True)):
        expected = np.column_stack([rotation_about(axis, angle), [0.1 * number, -3, 1e-5 * number]])
        np.testing.assert_array_equal(numbers(line).astype(np.float32), expected.astype(np.float32).ravel())
