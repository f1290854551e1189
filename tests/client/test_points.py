"""Points from poses and depths, with true ones of a drawn scene."""

import numpy as np
import pytest

from retinad.client.record import FeaturesRecord, make_record
from retinad.client.wire import decode, encode_features

from .messages import header, tensor
from .posed import CAMERA, SIZE, WALL, posed_message


def record(seq: int, *, stride: int = 1) -> FeaturesRecord:
    made = make_record(decode(posed_message("0123", "cam1", seq, stride=stride)))
    assert isinstance(made, FeaturesRecord)
    return made


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


def test_pixels_of_little_confidence_are_left_out() -> None:
    assert len(record(0).points(min_confidence=3.0)[0]) == SIZE[0] * SIZE[1]
    assert len(record(0).points(min_confidence=3.5)[0]) == 0


def test_a_record_without_poses_says_what_it_has() -> None:
    layout = tensor()
    message = decode(encode_features(header(layout), [memoryview(bytes(layout.nbytes))]))
    without = make_record(message)
    assert isinstance(without, FeaturesRecord)
    assert without.geometry is None
    with pytest.raises(KeyError, match="no tensor 'depth'; the record has layer0/patch"):
        without.points()
