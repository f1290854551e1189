"""Crops a camera's frames, before they are written to shared memory."""

from ..errors import SourceError, SourceFault
from ..frames import CropPlace, Pixels
from .reader import SourceInfo, UnreadableImage


def cropped(pixels: Pixels, crop: tuple[int, int, int, int], info: SourceInfo) -> tuple[Pixels, CropPlace]:
    """A view of the cropped part of a frame [H, W, 3], and the place of this part in the frame.

    Args:
        pixels: the frame as captured.
        crop: left column, top row, width and height.
        info: the properties of the source. Each image of a folder may have a different size.

    Raises:
        SourceError: the crop reaches beyond the frame (fault `UNREADABLE`).
        UnreadableImage: the crop reaches beyond one of several images; the others may be large enough.
    """
    left, top, width, height = crop
    captured_size = (pixels.shape[1], pixels.shape[0])
    if left + width > captured_size[0] or top + height > captured_size[1]:
        text = crop_fault(crop, captured_size)
        if info.backend == "images":
            raise UnreadableImage(text)
        raise SourceError(SourceFault.UNREADABLE, text)
    return pixels[top : top + height, left : left + width], CropPlace(left, top, captured_size)


def crop_fault(crop: tuple[int, int, int, int], size: tuple[int, int]) -> str:
    """The error text for a crop that reaches beyond frames of `size` (width and height)."""
    return (
        f"crop = {list(crop)} reaches beyond a frame of {size[0]}x{size[1]} pixels: expected [left, top, width, height]"
    )
