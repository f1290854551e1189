"""The model's image equals Pillow's, and every model pixel maps back to its source pixel."""

import contextlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from retinad.pipeline.config import ResizeMode
from retinad.pipeline.engine.preprocess import ResizeGeometry, preprocess, resize_geometry
from retinad.pipeline.frames import Pixels, Size

CPU = torch.device("cpu")
GOLDEN = Path(__file__).parents[2] / "data" / "golden"
WIDTH, PATCH = 518, 14
LEVEL = 1 / 255


def noise(size: Size, seed: int = 0) -> Pixels:
    """Pixels uint8 [height, width, 3]: the hardest case, since every pixel overshoots."""
    return np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)


def run(pixels: Pixels, mode: ResizeMode, width: int = WIDTH) -> tuple[ResizeGeometry, npt.NDArray[np.float32]]:
    geometry = resize_geometry((pixels.shape[1], pixels.shape[0]), mode, width, PATCH)
    return geometry, preprocess(pixels, geometry, CPU).permute(1, 2, 0).numpy()


def pillow_crop(bgr: Pixels, width: int) -> npt.NDArray[np.float64]:
    """The preprocessing with which the checkpoints were trained, written from the specification."""
    image = Image.fromarray(bgr[:, :, ::-1].copy())
    height = round(image.height * width / image.width / PATCH) * PATCH
    resized = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    top = (height - width) // 2 if height > width else 0
    return resized[top : top + width] / 255


def pillow_pad(bgr: Pixels, width: int) -> npt.NDArray[np.float64]:
    image = Image.fromarray(bgr[:, :, ::-1].copy())
    larger = max(image.size)
    size = tuple(width if side == larger else round(side * width / larger / PATCH) * PATCH for side in image.size)
    square = Image.new("RGB", (width, width), (255, 255, 255))
    resized = image.resize((size[0], size[1]), Image.Resampling.BICUBIC)
    square.paste(resized, ((width - size[0]) // 2, (width - size[1]) // 2))
    return np.asarray(square) / 255


def pillow_fit(bgr: Pixels, width: int) -> npt.NDArray[np.float64]:
    """HorizonStream's, written from the specification; of a square, as many rows as 3/4 of the columns hold patches."""
    image = Image.fromarray(bgr[:, :, ::-1].copy())
    larger = max(image.size)
    size = (round(image.width * width / larger), round(image.height * width / larger))
    resized = np.asarray(image.resize(size, Image.Resampling.LANCZOS if larger > width else Image.Resampling.BICUBIC))
    (cx, cy), (hw, hh) = (size[0] // 2, size[1] // 2), (size[i] // 2 * 2 // PATCH * PATCH // 2 for i in range(2))
    if size[0] == size[1]:
        hh = 2 * hw * 3 // 4 // PATCH * PATCH // 2
    return resized[cy - hh : cy + hh, cx - hw : cx + hw] / 255


PILLOW = {ResizeMode.CROP: pillow_crop, ResizeMode.PAD: pillow_pad, ResizeMode.FIT: pillow_fit}
SIZES = [(640, 480), (1920, 1080), (720, 1280), (518, 378), (100, 75), (1, 1), (3, 5), (640, 20), (1000, 999)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("mode", ResizeMode)
def test_images_equal_pillows_to_one_level(size: Size, mode: ResizeMode) -> None:
    """One level of 255: Pillow rounds its filter weights to 22 bits and halves upwards, torch halves to even."""
    pixels = noise(size)
    geometry, actual = run(pixels, mode)
    expected = PILLOW[mode](pixels, WIDTH)
    assert actual.shape == expected.shape == (geometry.model_size[1], geometry.model_size[0], 3)
    assert geometry.grid == (geometry.model_size[1] // PATCH, geometry.model_size[0] // PATCH)
    difference = np.abs(actual - expected)
    assert difference.max() <= 1.01 * LEVEL
    assert (difference > 0.5 * LEVEL).mean() <= 2e-3


@pytest.mark.parametrize("size", [(100, 75), (60, 100), (50, 30)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_fitted_images_agree_with_the_public_ones(size: Size) -> None:
    """Golden files, at a model size of 70; `horizon_golden` has their rules. Portrait images stay portrait."""
    width, height = size
    drawn = np.random.Generator(np.random.PCG64(34 + width + height)).random((height, width, 3), dtype=np.float32)
    pixels = np.floor(255 * drawn).astype(np.uint8)
    _, image = run(pixels[:, :, ::-1].copy(), ResizeMode.FIT, 70)
    expected = np.load(GOLDEN / "horizon_parts.npz")[f"picture_{width}x{height}"].transpose(1, 2, 0)
    assert image.shape == expected.shape
    difference = np.abs(image - expected)
    assert difference.max() <= 1.01 * LEVEL
    assert (difference > 0.5 * LEVEL).mean() <= 2e-3


def test_fitted_sizes_are_those_of_the_specification() -> None:
    for source, resized, model_size in (
        ((640, 480), (518, 388), (518, 378)),
        ((1920, 1080), (518, 291), (518, 280)),
        ((480, 640), (388, 518), (378, 518)),
        ((700, 700), (518, 518), (518, 378)),
    ):
        geometry = resize_geometry(source, ResizeMode.FIT, WIDTH, PATCH)
        assert (geometry.resized, geometry.model_size) == (resized, model_size)
    assert resize_geometry((640, 480), ResizeMode.FIT, WIDTH, PATCH).crop_top == 5
    assert not resize_geometry((518, 200), ResizeMode.FIT, WIDTH, PATCH).lanczos
    with pytest.raises(ValueError, match="too thin"):
        resize_geometry((1000, 20), ResizeMode.FIT, WIDTH, PATCH)


def test_heights_are_rounded_as_python_rounds() -> None:
    """Halves go to the even number of patches: 14 * 2.5 rows become 2 patches, 14 * 3.5 become 4."""
    assert resize_geometry((140, 35), ResizeMode.CROP, 140, PATCH).grid == (2, 10)
    assert resize_geometry((140, 49), ResizeMode.CROP, 140, PATCH).grid == (4, 10)


def test_pad_keeps_all_of_a_portrait_image() -> None:
    """A known fault elsewhere (vggt#32): portrait images silently lost their top and bottom."""
    geometry = resize_geometry((720, 1280), ResizeMode.PAD, WIDTH, PATCH)
    (a, _, c), (_, e, f) = geometry.to_source
    left, top = geometry.pad_left, geometry.pad_top
    right, bottom = left + geometry.resized[0] - 1, top + geometry.resized[1] - 1
    assert (a * (left - 0.5) + c, e * (top - 0.5) + f) == pytest.approx((-0.5, -0.5))
    assert (a * (right + 0.5) + c, e * (bottom + 0.5) + f) == pytest.approx((719.5, 1279.5))


@pytest.mark.parametrize("mode", ResizeMode)
@pytest.mark.parametrize("size", [(720, 1280), (1280, 720), (333, 517)], ids=str)
def test_a_dot_is_where_the_mapping_says(size: Size, mode: ResizeMode) -> None:
    """The centre of mass of a bright square, mapped back, is its centre in the source within half a pixel."""
    width, height = size
    centre = (width * 3 // 4, height // 2 - 9)
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[centre[1] - 8 : centre[1] + 9, centre[0] - 8 : centre[0] + 9] = 255
    geometry, image = run(pixels, mode)
    inside = image[
        geometry.pad_top : geometry.pad_top + min(geometry.resized[1], geometry.model_size[1]),
        geometry.pad_left : geometry.pad_left + geometry.resized[0],
        0,
    ]
    rows, columns = np.indices(inside.shape)
    y = (rows * inside).sum() / inside.sum() + geometry.pad_top
    x = (columns * inside).sum() / inside.sum() + geometry.pad_left
    (a, _, c), (_, e, f) = geometry.to_source
    assert (a * x + c, e * y + f) == pytest.approx(centre, abs=0.5)


def test_intrinsics_follow_the_mapping() -> None:
    """A known pinhole camera: a point projected to the source and to the model's image is on the same ray."""
    geometry = resize_geometry((1920, 1080), ResizeMode.CROP, WIDTH, PATCH)
    (a, _, c), (_, e, f) = geometry.to_source
    focal, centre = (1500.0, 1480.0), (955.0, 542.0)
    model_focal, model_centre = (focal[0] / a, focal[1] / e), ((centre[0] - c) / a, (centre[1] - f) / e)
    for ray in ((0.0, 0.0), (0.4, -0.3), (-0.6, 0.35)):
        source = tuple(ray[i] * focal[i] + centre[i] for i in range(2))
        model = tuple(ray[i] * model_focal[i] + model_centre[i] for i in range(2))
        assert (a * model[0] + c, e * model[1] + f) == pytest.approx(source, abs=1e-9)


def test_blue_green_red_becomes_red_green_blue_from_0_to_1() -> None:
    red = np.zeros((30, 40, 3), np.uint8)
    red[:, :, 2] = 255
    _, image = run(red, ResizeMode.CROP, 56)
    assert image[..., 0].min() == 1.0
    assert image[..., 1:].max() == 0.0


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((30, 40, 3), np.float32),
        np.zeros((30, 40, 4), np.uint8),
        np.zeros((30, 40), np.uint8),
        np.zeros((40, 30, 3), np.uint8),
    ],
    ids=["float", "alpha", "grey", "turned"],
)
def test_another_format_is_refused(pixels: Pixels) -> None:
    with pytest.raises(ValueError, match=r"expected uint8 \[30, 40, 3\], got"):
        preprocess(pixels, resize_geometry((40, 30), ResizeMode.CROP, 56, PATCH), CPU)


def test_padding_is_white_and_says_where() -> None:
    geometry, image = run(np.zeros((480, 640, 3), np.uint8), ResizeMode.PAD)
    assert geometry.resized == (518, 392)
    assert (geometry.pad_left, geometry.pad_top) == (0, 63)
    assert image[: geometry.pad_top].min() == image[geometry.pad_top + 392 :].min() == 1.0
    assert image[geometry.pad_top : geometry.pad_top + 392].max() == 0.0


@pytest.mark.parametrize("mode", ResizeMode)
@pytest.mark.parametrize("width", [1, 2, 13, 518, 8000])
@pytest.mark.parametrize("height", [1, 3, 700, 9000])
def test_every_size_becomes_an_image_or_is_named_in_the_error(width: int, height: int, mode: ResizeMode) -> None:
    if max(width, height) > 16 * min(width, height):
        with contextlib.suppress(ValueError):
            resize_geometry((width, height), mode, WIDTH, PATCH)
        return
    geometry = resize_geometry((width, height), mode, WIDTH, PATCH)
    assert all(side % PATCH == 0 and 0 < side <= WIDTH for side in geometry.model_size)
    assert max(geometry.resized) <= 16 * WIDTH


@pytest.mark.parametrize(
    ("size", "mode", "reason"),
    [
        ((0, 480), ResizeMode.CROP, "0x480 pixels is empty"),
        ((1000, 10), ResizeMode.CROP, "1000x10 pixels is too thin.*less than half of the patch size"),
        ((10, 1000), ResizeMode.PAD, "less than half of the patch size"),
        ((10, 1000), ResizeMode.CROP, "resize = 'pad'"),
    ],
)
def test_a_refused_image_says_why(size: Size, mode: ResizeMode, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        resize_geometry(size, mode, WIDTH, PATCH)


def test_a_read_only_view_of_shared_memory_is_accepted_and_released() -> None:
    pixels = noise((64, 48))
    pixels.flags.writeable = False
    geometry = resize_geometry((64, 48), ResizeMode.CROP, 64 - 64 % PATCH, PATCH)
    image = preprocess(pixels, geometry, CPU)
    before = image.clone()
    pixels.flags.writeable = True
    pixels[:] = 0
    assert torch.equal(image, before)
