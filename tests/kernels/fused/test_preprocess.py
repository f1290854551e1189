"""The two kernels compute the pipeline's image, normalised as the model normalises it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from retinad.kernels.fused import ImageTables, image_tables, preprocess, preprocess_reference
from retinad.pipeline.config import ResizeMode
from retinad.pipeline.engine import preprocess as pipeline
from retinad.pipeline.model.aggregator import MEAN, STD

from ..guards import BFLOAT16, FLOAT16, FLOAT32, WithoutTriton

PATCH = 14
SIZES = [(97, 61), (56, 40), (60, 42), (56, 42), (30, 47), (11, 7), (20, 150), (1, 1)]
"""Smaller and larger than the model's 56 columns; unchanged width, height or both; portrait; cropped."""


def noise(size: tuple[int, int], device: torch.device) -> Tensor:
    """Random pixels, the hardest case: every pixel overshoots."""
    random = torch.Generator().manual_seed(size[0])
    return torch.randint(256, (size[1], size[0], 3), dtype=torch.uint8, generator=random).to(device)


def tables_of(geometry: pipeline.ResizeGeometry, device: torch.device) -> ImageTables:
    return image_tables(geometry, MEAN, STD, device)


def run(pixels: Tensor, tables: ImageTables, dtype: torch.dtype = FLOAT32, patch_size: int = 0) -> Tensor:
    device, (width, height) = pixels.device, tables.model_size
    between = None
    if tables.columns is not None:
        between = torch.empty(tables.between_shape, dtype=torch.uint8, device=device)
    shape: tuple[int, ...] = (3, height, width)
    if patch_size:
        shape = (height * width // patch_size**2, 3 * patch_size**2)
    out = torch.full(shape, float("nan"), dtype=dtype, device=device)
    preprocess(pixels, tables, between, out, patch_size)
    return out


def expected(pixels: Tensor, geometry: pipeline.ResizeGeometry) -> Tensor:
    """The pipeline's result on the CPU, float32 [3, h, w]."""
    image = pipeline.preprocess(pixels.cpu().numpy(), geometry, torch.device("cpu"))
    return (image - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def assert_same_levels(got: Tensor, want: Tensor) -> None:
    """Within one level of 255, and equal nearly everywhere: filter weights are rounded differently."""
    levels = (got.cpu() - want).abs() * torch.tensor(STD).view(3, 1, 1) * 255
    assert levels.max() < 1.01
    assert (levels > 1e-3).float().mean() <= 2e-3


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("mode", ResizeMode)
def test_equals_the_pipelines_image(device: torch.device, mode: ResizeMode, size: tuple[int, int]) -> None:
    # Only `fit` makes a portrait image narrow: at a height of 56, less than one patch would be left of the thinnest.
    geometry = pipeline.resize_geometry(size, mode, 112 if mode is ResizeMode.FIT else 56, PATCH)
    pixels, tables = noise(size, device), tables_of(geometry, device)
    assert_same_levels(run(pixels, tables), expected(pixels, geometry))


@pytest.mark.parametrize("mode", ResizeMode)
def test_equals_the_reference(device: torch.device, mode: ResizeMode, without_triton: WithoutTriton) -> None:
    """With the same tables only the order of sums differs: at most one level, where rounding is at a boundary."""
    geometry = pipeline.resize_geometry((97, 61), mode, 56, PATCH)
    pixels, tables = noise((97, 61), device), tables_of(geometry, device)
    got, want = run(pixels, tables), torch.empty(3, *reversed(tables.model_size), device=device)
    between = torch.empty(tables.between_shape, dtype=torch.uint8, device=device)
    preprocess_reference(pixels, tables, between, want)
    assert_same_levels(got, want.cpu())
    without_triton(preprocess)
    assert torch.equal(run(pixels, tables), want)


@pytest.mark.parametrize("triton", [True, False])
def test_patches_are_what_a_convolution_sees(device: torch.device, triton: bool, without_triton: WithoutTriton) -> None:
    if not triton:
        without_triton(preprocess)
    geometry = pipeline.resize_geometry((97, 61), ResizeMode.CROP, 56, PATCH)
    pixels, tables = noise((97, 61), device), tables_of(geometry, device)
    unfolded = functional.unfold(run(pixels, tables)[None], PATCH, stride=PATCH)[0].T
    assert torch.equal(run(pixels, tables, patch_size=PATCH), unfolded)


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
def test_other_dtypes_are_rounded_last(device: torch.device, dtype: torch.dtype) -> None:
    geometry = pipeline.resize_geometry((97, 61), ResizeMode.PAD, 56, PATCH)
    pixels, tables = noise((97, 61), device), tables_of(geometry, device)
    got, want = run(pixels, tables, dtype).float(), run(pixels, tables)
    # Half a unit in the last place; Triton's interpreter truncates bfloat16: a whole unit.
    unit = 2.0**-7 if dtype == BFLOAT16 else 2.0**-10
    assert ((got - want).abs() <= unit * want.abs()).all()


def test_unresampled_levels_are_exact(device: torch.device) -> None:
    """An image of the model's size: each level is normalised exactly, and channels become RGB."""
    geometry = pipeline.resize_geometry((56, 42), ResizeMode.CROP, 56, PATCH)
    pixels = noise((56, 42), device)
    assert torch.equal(run(pixels, tables_of(geometry, device)).cpu(), expected(pixels, geometry))


def test_only_rows_that_are_kept_are_read(device: torch.device) -> None:
    """The middle of a tall image: rows above and below it change nothing and are not resampled."""
    geometry = pipeline.resize_geometry((20, 150), ResizeMode.CROP, 56, PATCH)
    pixels, tables = noise((20, 150), device), tables_of(geometry, device)
    assert tables.between_shape[0] < 30
    want = run(pixels, tables)
    pixels[: tables.first_row] = 255
    pixels[tables.stop_row :] = 255
    assert torch.equal(run(pixels, tables), want)


def test_wrong_arguments_are_refused(device: torch.device) -> None:
    geometry = pipeline.resize_geometry((97, 61), ResizeMode.CROP, 56, PATCH)
    pixels, tables = noise((97, 61), device), tables_of(geometry, device)
    between = torch.empty(tables.between_shape, dtype=torch.uint8, device=device)
    out = torch.empty(3, *reversed(tables.model_size), device=device)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: preprocess(pixels[1:], tables, between, out), r"pixels: expected a non-empty tensor \[61, 97, 3\]"),
        (lambda: preprocess(pixels.int(), tables, between, out), "pixels: expected torch.uint8"),
        (lambda: preprocess(pixels.flip(0).mT.contiguous().mT, tables, between, out), "pixels: expected a contiguous"),
        (lambda: preprocess(pixels, tables, None, out), "between: expected a tensor if and only if the width changes"),
        (lambda: preprocess(pixels, tables, between[1:], out), "between: expected a non-empty tensor"),
        (lambda: preprocess(pixels, tables, between, out[:2]), "out: expected a non-empty tensor"),
        (lambda: preprocess(pixels, tables, between, out.double()), "out: expected torch.bfloat16 or"),
        (lambda: preprocess(pixels, tables, between, out, 13), "patch_size: expected a divisor of 56 and 42, got 13"),
        (lambda: preprocess(pixels, tables, between, out, 14), r"out: expected a non-empty tensor \[12, 588\]"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1920, 1080), (640, 480), (720, 1280), (3840, 2160), (518, 294), (300, 200)], ids=str)
@pytest.mark.parametrize("mode", ResizeMode)
def test_full_size(device: torch.device, mode: ResizeMode, size: tuple[int, int]) -> None:
    geometry = pipeline.resize_geometry(size, mode, 518, PATCH)
    pixels, tables = noise(size, device), tables_of(geometry, device)
    assert_same_levels(run(pixels, tables), expected(pixels, geometry))
