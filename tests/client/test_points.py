"""Points from poses and depths, with true ones of a drawn scene."""

from typing import Any

import numpy as np
import pytest

from retinad.client.record import FeaturesRecord, make_record
from retinad.client.wire import GeometryHeader, decode, encode_features

from . import posed
from .messages import header, tensor
from .posed import CAMERA, SIZE, UNSURE, WALL, Floats, depth_of_wall, forward, posed_message, turned


def record(seq: int = 0, **changes: Any) -> FeaturesRecord:
    made = make_record(decode(posed_message("0123", "cam1", seq, **changes)))
    assert isinstance(made, FeaturesRecord)
    return made


def at_pixel(points: Floats, column: int, row: int) -> Floats:
    found: Floats = points.reshape(SIZE[1], SIZE[0], 3)[row, column]
    return found


def test_points_of_a_camera_that_moves_along_its_own_z_stay_on_the_wall() -> None:
    for seq in range(4):
        world, _ = record(seq).points()
        own, _ = record(seq).points("camera")
        assert world.dtype == np.float32
        np.testing.assert_allclose(world[:, 2], WALL, rtol=1e-6)
        np.testing.assert_allclose(own[:, 2], WALL - seq, rtol=1e-6)


def test_what_two_frames_see_falls_together_in_the_world() -> None:
    first, _ = record(0).points()
    second, _ = record(4).points()
    # Half the distance: the pixel that is twice as far from the principal point sees the same point of the wall.
    at = {(u, v): point for (u, v), point in zip(np.ndindex(SIZE[1], SIZE[0]), first, strict=True)}
    other = {(u, v): point for (u, v), point in zip(np.ndindex(SIZE[1], SIZE[0]), second, strict=True)}
    cy, cx = int(CAMERA[1, 2]), int(CAMERA[0, 2])
    for row, column in ((3, 5), (-2, 4), (0, 0), (-4, -7)):
        np.testing.assert_allclose(at[cy + row, cx + column], other[cy + 2 * row, cx + 2 * column], atol=1e-5)


def test_points_are_where_the_camera_matrix_says() -> None:
    points, _ = record(0).points("camera")
    pixels = points @ CAMERA.T
    columns, rows = np.meshgrid(np.arange(SIZE[0]), np.arange(SIZE[1]))
    np.testing.assert_allclose(pixels[:, 0] / pixels[:, 2], columns.ravel(), atol=1e-4)
    np.testing.assert_allclose(pixels[:, 1] / pixels[:, 2], rows.ravel(), atol=1e-4)


def test_a_strided_map_gives_every_nth_of_the_same_points() -> None:
    whole, _ = record(1).points()
    part, _ = record(1, stride=5).points()
    np.testing.assert_allclose(part, whole.reshape(SIZE[1], SIZE[0], 3)[::5, ::5].reshape(-1, 3), atol=1e-6)


def test_colours_are_those_of_the_source_pixels() -> None:
    image = np.random.default_rng(0).integers(0, 256, (2 * SIZE[1], 2 * SIZE[0], 3), dtype=np.uint8)
    points, colours = record(0).points(image=image)
    assert colours is not None
    assert len(colours) == len(points)
    # to_source maps pixel 3 to 6.5, which rounds to the even 6.
    np.testing.assert_array_equal(colours.reshape(SIZE[1], SIZE[0], 3)[4, 3], image[8, 6])
    with pytest.raises(ValueError, match=r"\(40, 60, 3\), got an image of shape \(20, 30, 3\)"):
        record(0).points(image=image[:20, :30])


def test_a_point_seen_by_a_camera_that_turned_is_where_its_axes_say() -> None:
    """By hand: K^-1 (20, 15, 1) = (0.2, 0.2, 1), so with a depth of 2 the point is at (0.4, 0.4, 2) of the camera."""
    flat = np.full((SIZE[1], SIZE[0]), 2.0)
    to_the_right = np.array([[0.0, 0, 1, 0], [0, 1, 0, 0], [-1, 0, 0, 0]])  # camera z is world x, camera x is world -z
    points, _ = record(pose=to_the_right, depth=flat).points()
    np.testing.assert_allclose(at_pixel(points, 20, 15), (2, 0.4, -0.4), atol=1e-6)
    upwards = np.array([[1.0, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0]])  # camera z is world -y, which is up
    points, _ = record(pose=upwards, depth=flat).points()
    np.testing.assert_allclose(at_pixel(points, 20, 15), (0.4, -2, 0.4), atol=1e-6)
    to_the_right[:, 3] = (10, 20, 30)
    points, _ = record(pose=to_the_right, depth=flat).points()
    np.testing.assert_allclose(at_pixel(points, 20, 15), (12, 20.4, 29.6), atol=1e-5)


@pytest.mark.parametrize(
    "pose", [turned(25, 0, (0, 0, 0)), turned(0, 15, (0, 0, 0)), turned(-30, -10, (2, -1, 3))], ids=str
)
def test_a_camera_that_turns_and_moves_still_sees_the_wall_in_its_place(pose: Floats) -> None:
    points, _ = record(pose=pose).points()
    assert len(points) == SIZE[0] * SIZE[1]
    np.testing.assert_allclose(points[:, 2], WALL, rtol=2**-10)  # half a unit in the last place of float16 depth
    away = np.linalg.norm(points - pose[:, 3], axis=1)
    columns, rows = np.meshgrid(np.arange(SIZE[0]), np.arange(SIZE[1]))
    ray = np.sqrt(((columns - 15) / 25) ** 2 + ((rows - 10) / 25) ** 2 + 1)
    np.testing.assert_allclose(away, (ray * depth_of_wall(pose)).ravel(), rtol=2**-10)


def test_pixels_of_little_confidence_are_left_out() -> None:
    whole, sure = SIZE[0] * SIZE[1], (SIZE[0] - UNSURE) * SIZE[1]
    points, _ = record().points("camera", min_confidence=3.0)
    assert len(points) == sure
    # The unsure columns are on the left: the first of the others is 5 pixels left of the principal point.
    np.testing.assert_allclose(points[:, 0].min(), (UNSURE - 15) / 25 * WALL, rtol=1e-6)
    assert [len(record().points(min_confidence=cut)[0]) for cut in (None, 0.0, 1.0, 3.5)] == [whole, whole, whole, 0]


def test_pixels_without_a_depth_are_left_out() -> None:
    depth = depth_of_wall(forward(0))
    depth[2, 3:7] = np.nan, np.inf, 0, -1
    image = np.arange(4 * SIZE[0] * SIZE[1] * 3, dtype=np.uint32).astype(np.uint8).reshape(2 * SIZE[1], 2 * SIZE[0], 3)
    points, colours = record(depth=depth).points(image=image)
    whole, all_colours = record().points(image=image)
    kept = np.ones((SIZE[1], SIZE[0]), bool)
    kept[2, 3:7] = False
    np.testing.assert_array_equal(points, whole[kept.ravel()])
    assert colours is not None
    assert all_colours is not None
    np.testing.assert_array_equal(colours, all_colours[kept.ravel()])


def test_a_pose_that_is_nan_has_no_points_in_the_world_but_its_cameras_own() -> None:
    image = np.zeros((2 * SIZE[1], 2 * SIZE[0], 3), np.uint8)
    lost = record(pose=np.full((3, 4), np.nan), depth=depth_of_wall(forward(0)))
    points, colours = lost.points(image=image)
    assert colours is not None
    assert points.shape == colours.shape == (0, 3)
    assert (points.dtype.str, colours.dtype.str) == ("<f4", "|u1")
    np.testing.assert_array_equal(lost.points("camera")[0], record().points("camera")[0])


def test_points_of_the_camera_need_no_pose() -> None:
    without = record(without=("pose/world_from_camera",))
    np.testing.assert_array_equal(without.points("camera")[0], record().points("camera")[0])
    with pytest.raises(KeyError, match="no tensor 'pose/world_from_camera'"):
        without.points()


def test_a_record_without_confidences_has_points_if_nothing_is_cut() -> None:
    without = record(without=("depth_confidence",))
    assert len(without.points(min_confidence=None)[0]) == SIZE[0] * SIZE[1]
    with pytest.raises(KeyError, match="no tensor 'depth_confidence'"):
        without.points()


def test_a_mistyped_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="expected frame 'world' or 'camera', got 'World'"):
        record().points("World")  # type: ignore[arg-type]  # the mistake


def test_padding_has_no_points() -> None:
    """A frame of 60 x 20 pixels in an image of 30 x 20 with five rows of padding above and below."""
    to_source = ((2.0, 0.0, 0.5), (0.0, 2.0, 2 * (-5 + 0.5) - 0.5))
    image = np.random.default_rng(0).integers(0, 256, (20, 60, 3), dtype=np.uint8)
    points, colours = record(to_source=to_source, source_size=(60, 20)).points("camera", image=image)
    rows = points[:, 1] / points[:, 2] * CAMERA[1, 1] + CAMERA[1, 2]
    np.testing.assert_allclose(np.unique(np.rint(rows)), np.arange(5, 15))
    assert colours is not None
    # The first row below the padding shows source rows 0 and 1, its centre is at 0.5; numpy rounds to the even 0.
    np.testing.assert_array_equal(colours[:3], image[0, [0, 2, 4]])


def test_padding_around_a_crop_has_no_points() -> None:
    """The rest of the captured frame lies under the padding, but the model has not seen it."""
    to_source = ((2.0, 0.0, 0.5), (0.0, 2.0, 2 * (-5 + 0.5) - 0.5 + 40))
    cropped = record(to_source=to_source, source_size=(200, 100), crop=(0, 40, 60, 20))
    assert len(cropped.points()[0]) == 30 * 10


def test_a_crop_that_reaches_beyond_the_frame_is_cut() -> None:
    """What comes from the network never makes an index fail."""
    image = np.zeros((2 * SIZE[1], 2 * SIZE[0], 3), np.uint8)
    to_source = ((4.0, 0.0, 0.5), (0.0, 4.0, 0.5))
    points, _ = record(to_source=to_source, crop=(0, 0, 10**6, 10**6)).points(image=image)
    assert len(points) == SIZE[0] * SIZE[1] // 4
    assert len(record(crop=(10**6, 0, 1, 1)).points(image=image)[0]) == 0


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e308])
def test_no_number_from_the_network_warns_or_makes_an_index_fail(number: float) -> None:
    """Warnings are errors here, as in many a subscriber."""
    image = np.zeros((2 * SIZE[1], 2 * SIZE[0], 3), np.uint8)
    lost = record(to_source=((number, 0.0, 0.5), (-number, 2.0, number)))
    assert lost.points(image=image)[0].shape == (0, 3)
    assert len(record(geometry=GeometryHeader(map_stride=2**64 - 1)).points(image=image)[0]) == 1  # pixel (0, 0)
    far = record(pose=np.column_stack([np.eye(3), np.full(3, 3e38)]), depth=np.full((SIZE[1], SIZE[0]), 6e4)).points()
    assert len(far[0]) == SIZE[0] * SIZE[1]


@pytest.mark.parametrize("camera", [np.nan, 0.0])
def test_without_a_camera_matrix_no_pixel_has_a_direction(camera: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posed, "CAMERA", np.full((3, 3), camera, np.float32))
    lost = record(depth=np.ones((SIZE[1], SIZE[0])))
    assert lost.points()[0].shape == lost.points("camera")[0].shape == (0, 3)


def test_a_record_without_poses_says_what_it_has() -> None:
    layout = tensor()
    message = decode(encode_features(header(layout), [memoryview(bytes(layout.nbytes))]))
    without = make_record(message)
    assert isinstance(without, FeaturesRecord)
    assert without.geometry is None
    with pytest.raises(KeyError, match="no tensor 'depth'; the record has layer0/patch"):
        without.points()


def test_a_calibrated_camera_matrix_is_used_in_place_of_the_estimated_one() -> None:
    """It is for pixels of the captured frame, twice as large as the model's image here."""
    to_source = ((2.0, 0.0, 0.5), (0.0, 2.0, 0.5))
    known = (60.0, 70.0, 31.5, 19.5)
    geometry = GeometryHeader(known_intrinsics=known)
    size = {"to_source": to_source, "source_size": (2 * SIZE[0], 2 * SIZE[1])}
    points, _ = record(0, geometry=geometry, **size).points("camera")
    columns, rows = np.meshgrid(np.arange(SIZE[0]), np.arange(SIZE[1]))
    x, y = 2 * columns.ravel() + 0.5, 2 * rows.ravel() + 0.5
    fx, fy, cx, cy = known
    np.testing.assert_allclose(points[:, 0] / points[:, 2] * fx + cx, x, atol=1e-4)
    np.testing.assert_allclose(points[:, 1] / points[:, 2] * fy + cy, y, atol=1e-4)
