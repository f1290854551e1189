"""What a config takes of a device's memory, as sums that can be checked: the weights, and each camera's stream."""

from retinad.pipeline.config import ModelConfig, ResizeMode
from retinad.pipeline.frames import Size
from retinad.pipeline.packing import TokenShape
from retinad.pipeline.preprocess import fit

USUAL_SIZE = (640, 480)
"""What a camera's pictures are taken to be where nothing says their size: 4:3."""


def tokens_of_a_frame(model: ModelConfig, size: Size = USUAL_SIZE, resize: ResizeMode = ResizeMode.CROP) -> int:
    """P of pictures of this size."""
    how = fit(size, resize, model.image_width, model.network.patch_size)
    return TokenShape.of(model.network, how.grid).tokens
