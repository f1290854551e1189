"""Attention to ranges against the definition in float64, on shapes small enough for Triton's interpreter."""

from collections.abc import Callable

import pytest
import torch

from retinad.kernels.attention import attend_ranges, ranges
from retinad.kernels.attention.reference import attend_ranges_reference

BFLOAT16, FLOAT16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
# Half a unit of the last place is 2^-9 in bfloat16 and 2^-12 in float16: rounding the output alone causes errors of
# 1.7e-3 and 2.1e-4 of the norm, rounding the probabilities adds to them.
TOLERANCE = {BFLOAT16: 4e-3, FLOAT16: 6e-4}
NAN = float("nan")


@pytest.fixture(params=["triton", "pytorch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both paths: the kernel, and PyTorch without Triton."""
    if request.param == "pytorch":
        monkeypatch.setattr(ranges, "runs_triton", lambda device: False)


def tensors(
    device: torch.device, P: int, T: int, S: int = 1, H: int = 2, D: int = 16, dtype: torch.dtype = BFLOAT16
) -> tuple[torch.Tensor, torch.Tensor]:
    """A query, and a KV cache filled with NaN."""
    random = torch.Generator().manual_seed(P + T)
    query = 2 * torch.randn(S, P, H, D, generator=random)
    return query.to(device, dtype), torch.full((2, T, H, D), NAN, dtype=dtype, device=device)


def fill(kv_cache: torch.Tensor, bounds: list[list[list[int]]]) -> torch.Tensor:
    """Write random keys and values to the slots of all ranges; return the ranges as a tensor."""
    random = torch.Generator().manual_seed(1)
    known = torch.randn(kv_cache.shape, generator=random).to(kv_cache.device, kv_cache.dtype)
    for first, stop in (pair for frame in bounds for pair in frame):
        if first < stop:
            kv_cache[:, first:stop] = known[:, first:stop]
    return torch.tensor(bounds, device=kv_cache.device)


def assert_right(
    query: torch.Tensor, kv_cache: torch.Tensor, slots: torch.Tensor, out: torch.Tensor, factor: float = 1.0
) -> None:
    want = attend_ranges_reference(query.cpu(), kv_cache.cpu(), slots.cpu(), torch.float64)
    got = out.double().cpu()
    assert got.shape == want.shape
    assert out.dtype == query.dtype
    error = float((got - want).norm() / want.norm())
    assert error <= factor * TOLERANCE[query.dtype], f"relative error {error:.2e}"


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("P", "first", "stop"), [(1, 0, 1), (5, 3, 9), (63, 1, 129), (65, 7, 390), (130, 5, 133)])
def test_any_number_of_tokens_and_slots(
    device: torch.device, dtype: torch.dtype, P: int, first: int, stop: int
) -> None:
    query, kv_cache = tensors(device, P, stop + 9, dtype=dtype)
    slots = fill(kv_cache, [[[first, stop]]])
    assert_right(query, kv_cache, slots, attend_ranges(query, kv_cache, slots))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_several_ranges_and_empty_ones_in_any_position(device: torch.device, index: torch.dtype) -> None:
    """Each frame has its own ranges, with empty ones first, in the middle and last; all other slots hold NaN."""
    query, kv_cache = tensors(device, 9, 600, S=4)
    bounds = [
        [[0, 0], [3, 11], [9, 4], [20, 160], [300, 556], [7, 7]],
        [[100, 101], [0, 0], [0, 0], [0, 0], [0, 0], [30, 31]],
        [[596, 600], [1, 0], [20, 160], [0, 0], [599, 600], [161, 162]],
        [[0, 0], [0, 0], [0, 0], [0, 0], [5, 5], [300, 428]],
    ]
    bounds[2][5] = [0, 0]
    slots = fill(kv_cache, bounds).to(index)
    assert_right(query, kv_cache, slots, attend_ranges(query, kv_cache, slots))


@pytest.mark.usefixtures("path")
def test_a_frame_without_slots_gets_zeros(device: torch.device) -> None:
    query, kv_cache = tensors(device, 3, 10, S=2)
    slots = fill(kv_cache, [[[4, 4], [9, 2]], [[1, 3], [0, 0]]])
    out = attend_ranges(query, kv_cache, slots)
    assert (out[0] == 0).all()
    assert_right(query, kv_cache, slots, out)
    assert (attend_ranges(query, kv_cache, slots[:, :0].contiguous()) == 0).all()


@pytest.mark.usefixtures("path")
def test_a_slot_in_two_ranges_counts_twice(device: torch.device) -> None:
    query, kv_cache = tensors(device, 2, 40)
    slots = fill(kv_cache, [[[3, 20], [10, 30]]])
    assert_right(query, kv_cache, slots, attend_ranges(query, kv_cache, slots))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_scores_far_apart_and_growing(device: torch.device, dtype: torch.dtype) -> None:
    """The largest score grows from block to block beyond the range of any exponent; nothing overflows."""
    query, kv_cache = tensors(device, 7, 700, dtype=dtype)
    slots = fill(kv_cache, [[[2, 690]]])
    kv_cache[0] *= torch.arange(700, device=device)[:, None, None].to(dtype) / 4
    assert_right(query, kv_cache, slots, attend_ranges(query, kv_cache, slots))
    falling = kv_cache.flip(1).contiguous()
    slots = torch.tensor([[[10, 698]]], device=device)
    assert_right(query, falling, slots, attend_ranges(query, falling, slots))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("D", [16, 64])
@pytest.mark.parametrize("P", [1, 4, 42, 256, 777, 999, 1024])
def test_ones_give_ones_whatever_the_frames_size(device: torch.device, P: int, D: int) -> None:
    """Another public kernel attended to the padding of its pages, as zeros."""
    query, kv_cache = tensors(device, 3, 2 * P + 7, D=D, dtype=FLOAT16)  # bfloat16 has no number closer to 1 than 4e-3
    slots = fill(kv_cache, [[[2, 2 + P], [5 + P, 5 + 2 * P]]])
    kv_cache[1] = kv_cache[1].where(kv_cache[1].isnan(), 1.0)
    out = attend_ranges(query, kv_cache, slots)
    torch.testing.assert_close(out, torch.ones_like(out), rtol=0, atol=1e-3)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("D", [16, 64])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sign", [-1, 1])
def test_large_equal_scores_give_the_mean(device: torch.device, sign: int, dtype: torch.dtype, D: int) -> None:
    """Another public kernel treated scores below -5e4 as masked."""
    query, kv_cache = tensors(device, 3, 300, D=D, dtype=dtype)
    slots = fill(kv_cache, [[[1, 140], [200, 290]]])
    query[:] = 100.0
    kv_cache[0] = kv_cache[0].where(kv_cache[0].isnan(), sign * 6e4 / (100 * D**0.5))  # all scores 6e4, or -6e4
    assert_right(query, kv_cache, slots, attend_ranges(query, kv_cache, slots), factor=2)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_cache_in_float8_is_exact_for_the_values_it_holds(device: torch.device, dtype: torch.dtype) -> None:
    query, kv_cache = tensors(device, 5, 300, dtype=dtype)
    slots = fill(kv_cache, [[[1, 9], [20, 290]]])
    small = kv_cache.to(FP8)
    assert_right(query, small, slots, attend_ranges(query, small, slots))


@pytest.mark.usefixtures("path")
def test_a_slice_of_a_fused_projection_and_a_wide_output(device: torch.device) -> None:
    """Strides of S and P are free, and nothing outside the output is written."""
    query, kv_cache = tensors(device, 5, 50, S=2)
    slots = fill(kv_cache, [[[3, 44]], [[6, 7]]])
    fused = torch.full((2, 5, 3 * 32), NAN, dtype=BFLOAT16, device=device)
    fused[..., 32:64] = query.flatten(2)
    wide = torch.full((2, 7, 2, 2, 16), 7.0, dtype=BFLOAT16, device=device)
    out = wide[:, 1:6, 1]
    assert attend_ranges(fused[..., 32:64].view(2, 5, 2, 16), kv_cache, slots, out) is out
    assert_right(query, kv_cache, slots, out)
    assert (wide[:, :, 0] == 7).all()
    assert (wide[:, [0, 6]] == 7).all()


@pytest.mark.usefixtures("path")
def test_no_frames_and_no_tokens(device: torch.device) -> None:
    query, kv_cache = tensors(device, 4, 10)
    slots = torch.zeros(1, 1, 2, dtype=torch.int32, device=device)
    assert attend_ranges(query[:, :0], kv_cache, slots).shape == (1, 0, 2, 16)
    assert attend_ranges(query[:0], kv_cache, slots[:0]).shape == (0, 4, 2, 16)


def test_wrong_arguments_are_refused() -> None:
    query, kv_cache = tensors(torch.device("cpu"), 4, 10)
    slots = torch.tensor([[[0, 10]]])
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: attend_ranges(query[0], kv_cache, slots), r"query: expected shape \[S, P, H, D\], got \[4, 2, 16\]"),
        (lambda: attend_ranges(query.float(), kv_cache, slots), "query: expected one of .*bfloat16.*float32"),
        (lambda: attend_ranges(query[..., :8], kv_cache, slots), "query: expected D to be one of .* got 8"),
        (
            lambda: attend_ranges(query.transpose(1, 2), kv_cache[:, :, :1].expand(2, 10, 4, 16), slots),
            "query: expected dense",
        ),
        (
            lambda: attend_ranges(query, kv_cache[:1], slots),
            r"kv_cache: expected shape \[2, T, H, D\] = \[2, T, 2, 16\]",
        ),
        (lambda: attend_ranges(query, kv_cache.half(), slots), "kv_cache: expected torch.bfloat16"),
        (lambda: attend_ranges(query, kv_cache[:, ::2], slots), "kv_cache: expected dense slots"),
        (lambda: attend_ranges(query, kv_cache.flatten()[1:321].view(2, 5, 2, 16), slots), "aligned to 16 bytes"),
        (lambda: attend_ranges(query, kv_cache, slots[0]), r"ranges: expected shape \[S, R, 2\] = \[1, R, 2\]"),
        (lambda: attend_ranges(query, kv_cache, slots.expand(1, 7, 2)), "with R <= 6"),
        (lambda: attend_ranges(query, kv_cache, slots.float()), "ranges: expected int32 or int64"),
        (lambda: attend_ranges(query, kv_cache, slots.expand(1, 3, 2)), "ranges: expected a contiguous tensor"),
        (lambda: attend_ranges(query, kv_cache, slots + 1), "ranges: expected slots from 0 to 10, got 1 to 11"),
        (lambda: attend_ranges(query, kv_cache, slots, query.half()), "out: expected torch.bfloat16"),
        (lambda: attend_ranges(query, kv_cache, slots, query[:, :3]), r"out: expected .* \[1, 4, 2, 16\]"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("E", [1, 33, 128, 300])
def test_tokens_beside_the_slots_are_seen_too(device: torch.device, dtype: torch.dtype, E: int) -> None:
    """Read in place from a wider projection, with NaN around them; one frame sees no slots, another an empty range."""
    query, kv_cache = tensors(device, 9, 200, S=3, dtype=dtype)
    slots = fill(kv_cache, [[[3, 160], [0, 0]], [[5, 5], [0, 0]], [[0, 0], [170, 190]]])
    wide = torch.full((3, E + 2, 4, 2, 16), NAN, dtype=dtype, device=device)
    known = torch.randn(3, E, 2, 2, 16, generator=torch.Generator().manual_seed(E))
    wide[:, 1:-1, 1:3] = known.to(device, dtype)
    beside = wide[:, 1:-1, 1], wide[:, 1:-1, 2]
    out = attend_ranges(query, kv_cache, slots, beside=beside)
    cpu = beside[0].cpu(), beside[1].cpu()
    want = attend_ranges_reference(query.cpu(), kv_cache.cpu(), slots.cpu(), torch.float64, cpu)
    assert float((out.double().cpu() - want).norm() / want.norm()) <= TOLERANCE[dtype]
    nothing = attend_ranges(query, kv_cache, slots, beside=(beside[0][:, :0], beside[1][:, :0]))
    assert torch.equal(nothing, attend_ranges(query, kv_cache, slots))


def test_unfit_tokens_beside_the_slots_are_refused(device: torch.device) -> None:
    query, kv_cache = tensors(device, 4, 8, S=2)
    slots = fill(kv_cache, [[[0, 4]], [[2, 8]]])
    good = torch.zeros(2, 3, 2, 16, dtype=BFLOAT16, device=device)
    wide = torch.zeros(2, 5, 2, 16, dtype=BFLOAT16, device=device)[:, :3]
    for beside, message in (
        ((good[:1], good[:1]), r"beside: expected shape \[S, E, H, D\] = \[2, E, 2, 16\], got \[1, 3, 2, 16\]"),
        ((good.half(), good.half()), "beside: expected torch.bfloat16 on"),
        ((good.mT.contiguous().mT, good), "beside: expected dense heads"),
        ((good, wide), "beside: expected keys and values of one layout"),
    ):
        with pytest.raises(ValueError, match=message):
            attend_ranges(query, kv_cache, slots, beside=beside)
