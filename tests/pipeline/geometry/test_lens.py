"""Undistorted pictures equal OpenCV's, and straight lines of the scene are straight in them."""

from dataclasses import replace

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.nn import functional

from retinad.pipeline.geometry.lens import distorted, sampling_grid
from retinad.pipeline.view_config import Calibration

SIZE = (320, 240)
PLAIN = Calibration(SIZE, (200.0, 210.0), (158.0, 121.5))
LENSES = (
    replace(PLAIN, coefficients=(-0.3, 0.1, 0.002, -0.003)),
    replace(PLAIN, coefficients=(-0.25, 0.08, 0.001, 0.002, -0.01)),
    replace(PLAIN, coefficients=(-0.3, 0.05, 0.001, 0.002, 0.01, 0.15, 0.02, 0.003)),
    replace(PLAIN, model="fisheye", coefficients=(0.05, -0.02, 0.01, -0.003)),
)
Picture = npt.NDArray[np.uint8]


def picture() -> Picture:
    coarse = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    smooth: Picture = cv2.resize(coarse, SIZE, interpolation=cv2.INTER_CUBIC).astype(np.uint8)
    return smooth


def matrix(lens: Calibration) -> npt.NDArray[np.float64]:
    (fx, fy), (cx, cy) = lens.focal, lens.centre
    return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])


def by_opencv(lens: Calibration, image: Picture) -> Picture:
    camera, coefficients = matrix(lens), np.array(lens.coefficients)
    if lens.model == "fisheye":
        done = cv2.fisheye.undistortImage(image, camera, coefficients, Knew=camera)
    else:
        done = cv2.undistort(image, camera, coefficients)
    return done.astype(np.uint8)


def undistort(lens: Calibration, image: Picture, left: int = 0, top: int = 0) -> Picture:
    size = (image.shape[1], image.shape[0])
    grid = torch.from_numpy(sampling_grid(lens, left, top, size))[None]
    planes = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    sampled = functional.grid_sample(planes, grid, "bilinear", align_corners=True)
    return sampled[0].permute(1, 2, 0).round().to(torch.uint8).numpy()


@pytest.mark.parametrize("lens", LENSES, ids=lambda lens: f"{lens.model} {len(lens.coefficients)}")
def test_pictures_are_those_of_opencv(lens: Calibration) -> None:
    """Within two levels: OpenCV samples at 32nds of a pixel. At the border of what was seen it blends differently."""
    ours, theirs = undistort(lens, picture()), by_opencv(lens, picture())
    seen = (
        cv2.erode((by_opencv(lens, np.full_like(picture(), 255))[..., 0] == 255).astype(np.uint8), np.ones((5, 5))) > 0
    )
    assert seen.mean() > 0.6
    difference = np.abs(ours.astype(int) - theirs.astype(int))[seen]
    assert difference.max() <= 8  # where the picture changes by 200 levels over ten pixels
    assert difference.mean() < 0.5


@pytest.mark.parametrize("lens", LENSES, ids=lambda lens: f"{lens.model} {len(lens.coefficients)}")
def test_a_bent_line_is_straight_again(lens: Calibration) -> None:
    """The scene has a vertical line; the lens bends it, as far as the corner is moved."""
    y, x = np.mgrid[: SIZE[1], : SIZE[0]].astype(np.float64)
    forward = np.stack(distorted(lens, x, y), axis=-1)
    column = 60
    bent = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
    cv2.polylines(bent, [np.rint(forward[:, column]).astype(np.int32)], False, (255, 255, 255), 2)
    assert np.ptp(forward[:, column, 0]) > 4
    straight = undistort(lens, bent)[20:-20, :, 0].astype(np.float64)
    lit = straight.sum(axis=1) > 0
    centres = (straight * np.arange(SIZE[0])).sum(axis=1)[lit] / straight.sum(axis=1)[lit]
    assert lit.mean() > 0.9
    np.testing.assert_allclose(centres, column, atol=1.0)


def test_a_part_of_a_frame_is_the_part_of_the_undistorted_frame() -> None:
    """As far as it was sampled from within the part."""
    lens, whole = LENSES[0], picture()
    part = undistort(lens, np.ascontiguousarray(whole[40:200, 60:260]), left=60, top=40)
    same = undistort(lens, whole)[80:160, 110:210]
    np.testing.assert_allclose(part[40:120, 50:150].astype(int), same.astype(int), atol=1)  # float32 rounds halves


def test_a_calibration_fits_other_resolutions_of_the_same_shape() -> None:
    half = PLAIN.fitted((160, 120))
    assert (half.focal, half.size) == ((100.0, 105.0), (160, 120))
    assert half.centre == pytest.approx((78.75, 60.5))  # pixel centres are at whole numbers
    with pytest.raises(ValueError, match="320x240 pixels, whose shape is not that of 320x200"):
        PLAIN.fitted((320, 200))
