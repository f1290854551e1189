"""Resizes captured frames to the model's images: geometry, crop or padding, RGB, and the map back to source pixels.

Resampling is Pillow's antialiased BICUBIC or LANCZOS, written in torch so that it runs on any device: one pass over the
width and one over the height, each rounded to whole levels and clipped, as in Pillow. The result differs from Pillow's
by at most one level of 255: Pillow rounds its filter weights to 22 bits and halves upwards, so about one value in a
thousand is rounded the other way. (Without rounding and clipping between the passes, overshoots would differ by up to
21 levels.)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from retinad.kernels.fused.preprocess import filtered
from retinad.kernels.fused.preprocess_tables import filter_taps

from ..config import ResizeMode
from ..frames import Affine, CropPlace, Pixels, Size

WHITE = 255.0
MOST_WIDTHS = 16
"""Images higher than this many times their width are refused in crop mode, which would keep only their middle."""


@dataclass(frozen=True, slots=True)
class ResizeGeometry:
    """How frames of one size become images of the model.

    Attributes:
        source_size: width and height of the source in pixels.
        resized: width and height after resampling.
        crop_top: number of rows cut off at the top after resampling.
        pad_left, pad_top: numbers of white columns added at the left and of white rows added at the top.
        model_size: width and height of the resulting image.
        grid: numbers of rows and columns of patches in the resulting image.
        crop_left: number of columns cut off at the left after resampling.
        lanczos: whether the filter is LANCZOS instead of BICUBIC.
    """

    source_size: Size
    resized: Size
    crop_top: int
    pad_left: int
    pad_top: int
    model_size: Size
    grid: tuple[int, int]
    crop_left: int = 0
    lanczos: bool = False

    @property
    def to_source(self) -> Affine:
        """The map from pixels of the model's image to source pixels; pixel centres are at whole numbers in both."""
        a, e = (source / resized for source, resized in zip(self.source_size, self.resized, strict=True))
        left, top = self.crop_left - self.pad_left, self.crop_top - self.pad_top
        return ((a, 0.0, a * (left + 0.5) - 0.5), (0.0, e, e * (top + 0.5) - 0.5))


def shifted(affine: Affine, crop: CropPlace | None) -> Affine:
    """The map to the pixels of a cropped frame, continued to those of the captured frame."""
    if crop is None:
        return affine
    (a, b, c), (d, e, f) = affine
    return (a, b, c + crop.left), (d, e, f + crop.top)


def resize_geometry(source: Size, mode: ResizeMode, image_width: int, patch_size: int) -> ResizeGeometry:
    """Compute how frames of size `source` are fitted to a model's image size.

    Args:
        source: width and height of the frames in pixels.
        mode: With `CROP`, the width becomes `image_width` and the height the nearest multiple of the patch size; if the
            image is then higher than `image_width`, only the middle rows are kept. With `PAD`, the larger side becomes
            `image_width`, the other side the nearest multiple of the patch size, and white is added to make a square.
            With `FIT`, the larger side becomes `image_width`, the other side keeps the shape, and of both, the middle
            is kept that is a multiple of the patch size. Of a square, 3/4 of the rows are kept. An image that becomes
            smaller is filtered by LANCZOS. (This is how HorizonStream was trained, arXiv 2605.23889.)
        image_width: width of the model's images in pixels, a multiple of `patch_size`.
        patch_size: width and height of a patch in pixels.

    Raises:
        ValueError: the frame is empty, or so thin that less than half a patch would be left, or, in crop mode, so high
            that nearly all of it would be cut off.
    """
    width, height = source
    if width < 1 or height < 1:
        raise ValueError(f"an image of {width}x{height} pixels is empty")
    if mode is ResizeMode.FIT:
        return _fitted(source, image_width, patch_size)
    if mode is ResizeMode.CROP or width >= height:
        resized = (image_width, _nearest_multiple(height * image_width / width, patch_size, source))
    else:
        resized = (_nearest_multiple(width * image_width / height, patch_size, source), image_width)
    if mode is ResizeMode.PAD:
        return _padded(source, resized, image_width, patch_size)
    return _cropped(source, resized, image_width, patch_size)


def preprocess(pixels: Pixels, geometry: ResizeGeometry, device: torch.device) -> Tensor:
    """Make the model's image of a frame.

    Args:
        pixels: uint8 [height, width, 3], BGR. They are copied first, since their memory may soon be overwritten.
        geometry: the result of `resize_geometry` for this size.
        device: device on which the image is computed and stored.

    Returns:
        float32 [3, h, w], RGB in [0, 1].

    Raises:
        ValueError: the pixels have another size, shape or number format than the geometry expects.
    """
    return resampled(upload(pixels, geometry, device), geometry)


def resampled(pixels: Tensor, geometry: ResizeGeometry) -> Tensor:
    """Like `preprocess`, of pixels that are on the device: uint8 [height, width, 3], BGR."""
    height = geometry.source_size[1]
    image = pixels.permute(2, 0, 1).flip(0).float().unsqueeze(0)  # [1, 3, height, width], RGB
    new_width, new_height = geometry.resized
    resample = _resample_lanczos if geometry.lanczos else _resample
    image = resample(image, (height, new_width))
    image = resample(image, (new_height, new_width))
    left, top, (model_width, model_height) = geometry.crop_left, geometry.crop_top, geometry.model_size
    image = image[:, :, top : top + model_height, left : left + model_width]
    return _pad(image, geometry).squeeze(0) / 255.0


def upload(
    pixels: Pixels, geometry: ResizeGeometry, device: torch.device, copy: Callable[[Pixels, Pixels], None] = np.copyto
) -> Tensor:
    """Copy pixels to the device, without waiting for the copy.

    Args:
        pixels, geometry, device: see `preprocess`.
        copy: copies its second argument into its first.

    Raises:
        ValueError: the pixels have another size, shape or number format than the geometry expects.
    """
    width, height = geometry.source_size
    if pixels.dtype != np.uint8 or pixels.shape != (height, width, 3):
        raise ValueError(f"expected uint8 [{height}, {width}, 3], got {pixels.dtype} {list(pixels.shape)}")
    # Pinned memory lets the copy to a GPU overlap with work on the host; torch's allocator recycles it.
    staging = torch.empty(pixels.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
    copy(staging.numpy(), pixels)
    return staging.to(device, non_blocking=True)


def _nearest_multiple(length: float, patch_size: int, source: Size) -> int:
    patches = round(length / patch_size)
    if not patches:
        raise ValueError(
            f"an image of {source[0]}x{source[1]} pixels is too thin: at the model's size, its shorter side has "
            f"{length:.2g} pixels, which is less than half of the patch size {patch_size}"
        )
    return patches * patch_size


def _cropped(source: Size, resized: Size, image_width: int, patch_size: int) -> ResizeGeometry:
    width, height = resized
    if height > MOST_WIDTHS * image_width:
        raise ValueError(
            f"an image of {source[0]}x{source[1]} pixels is too high to crop: at the model's width, it has {height} "
            f"rows, but only {image_width} would be kept; use resize = 'pad'"
        )
    kept = min(height, image_width)
    return ResizeGeometry(
        source, resized, (height - kept) // 2, 0, 0, (width, kept), (kept // patch_size, width // patch_size)
    )


def _fitted(source: Size, image_width: int, patch_size: int) -> ResizeGeometry:
    larger = max(source)
    width, height = (round(side * image_width / larger) for side in source)
    columns, rows = _middle(width, patch_size), _middle(height, patch_size)
    if width == height:
        rows = columns * 3 // 4 // patch_size * patch_size
    if not rows or not columns:
        raise ValueError(
            f"an image of {source[0]}x{source[1]} pixels is too thin: at the model's size, it has {width}x{height} "
            f"pixels, which is less than the patch size {patch_size}"
        )
    left, top = width // 2 - columns // 2, height // 2 - rows // 2
    return ResizeGeometry(
        source,
        (width, height),
        top,
        0,
        0,
        (columns, rows),
        (rows // patch_size, columns // patch_size),
        left,
        larger > image_width,
    )


def _middle(length: int, patch_size: int) -> int:
    # The number of pixels that are kept around the middle, half of them (rounded down) before it.
    return length // 2 * 2 // patch_size * patch_size


def _padded(source: Size, resized: Size, image_width: int, patch_size: int) -> ResizeGeometry:
    left, top = ((image_width - side) // 2 for side in resized)
    side = image_width // patch_size
    return ResizeGeometry(source, resized, 0, left, top, (image_width, image_width), (side, side))


def _resample(image: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(image.shape[2:]) == size:
        return image
    return functional.interpolate(image, size, mode="bicubic", antialias=True).round_().clamp_(0.0, 255.0)


def _resample_lanczos(image: Tensor, size: tuple[int, int]) -> Tensor:
    # torch has no such filter: the kernels' taps are used, along one axis after the other.
    for axis, target in zip((2, 3), size, strict=True):
        if image.shape[axis] != target:
            taps = filter_taps(image.shape[axis], target, lanczos=True, device=image.device)
            image = filtered(image.movedim(axis, 0), taps).movedim(0, axis)
    return image


def _pad(image: Tensor, geometry: ResizeGeometry) -> Tensor:
    width, height = geometry.model_size
    right, bottom = width - image.shape[3] - geometry.pad_left, height - image.shape[2] - geometry.pad_top
    if not (geometry.pad_left or geometry.pad_top or right or bottom):
        return image
    return functional.pad(image, (geometry.pad_left, right, geometry.pad_top, bottom), value=WHITE)
