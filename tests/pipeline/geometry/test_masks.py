"""Masks: what is black or within a polygon does not count."""

import cv2
import numpy as np
import pytest

from retinad.pipeline.geometry.masks import counts_of
from retinad.pipeline.view_config import Mask


def test_the_inside_of_polygons_is_ignored() -> None:
    """As OpenCV fills them, but for the outline."""
    corners = ((3.0, 2.0), (40.0, 8.0), (20.0, 30.0))
    counts = counts_of(Mask(polygons=(corners,)), (50, 40))
    filled = cv2.fillPoly(np.zeros((40, 50), np.uint8), [np.array(corners, np.int32)], 1)
    sure = cv2.erode(filled, np.ones((3, 3))) > 0
    assert not counts[sure].any()
    assert counts[cv2.dilate(filled, np.ones((3, 3))) == 0].all()


def test_a_picture_is_stretched_to_the_frames() -> None:
    counts = np.random.default_rng(0).random((6, 9)) > 0.5
    mask = Mask(size=(9, 6), rows=np.packbits(counts, axis=1).tobytes())
    np.testing.assert_array_equal(counts_of(mask, (9, 6)), counts)
    np.testing.assert_array_equal(counts_of(mask, (27, 12)), counts.repeat(2, axis=0).repeat(3, axis=1))


def test_broken_masks_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3 corners, got 2"):
        Mask(polygons=(((0.0, 0.0), (1.0, 1.0)),))
    with pytest.raises(ValueError, match="rows of whole bytes"):
        Mask(size=(9, 6), rows=b"x")
