"""The preprocessor makes the right images ahead of time, and copies large images correctly."""

import numpy as np
import pytest
import torch

from retinad.pipeline.config import ResizeMode
from retinad.pipeline.engine.images import ImagePreprocessor
from retinad.pipeline.engine.preprocess import resize_geometry

from .engine_rig import frame

CPU = torch.device("cpu")


def test_images_that_no_step_took_are_released_at_the_next_prefetch() -> None:
    geometry = resize_geometry((64, 48), ResizeMode.CROP, 56, 14)
    preprocessor = ImagePreprocessor(CPU)
    preprocessor.prefetch([(frame("a", number), geometry, None) for number in range(3)])
    preprocessor.prefetch([(frame("a", 3), geometry, None)])
    assert len(preprocessor._prefetched) == 1


@pytest.mark.parametrize("height", [1, 3, 1500, 1501])
@pytest.mark.parametrize("width", [1, 1000])
def test_several_threads_copy_every_row_of_a_large_image(width: int, height: int) -> None:
    source = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    target = np.zeros_like(source)
    ImagePreprocessor(CPU)._copy(target, source)
    np.testing.assert_array_equal(target, source)
