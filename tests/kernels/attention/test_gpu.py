"""Attention to ranges on a CUDA device at its real sizes: heads of 64 and 128, long ranges, far slots, graphs."""

import math

import pytest
import torch

from retinad.kernels.attention import attend_ranges
from retinad.kernels.attention.checks import check_inputs
from retinad.kernels.attention.ranges import supports_sm90
from retinad.kernels.attention.ranges_triton import launch_ranges
from retinad.kernels.attention.reference import attend_ranges_reference

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

BFLOAT16, FLOAT16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
# Largest errors over all cases are 2.4e-3 and 2.9e-4, of which rounding the output causes 1.7e-3 and 2.1e-4.
TOLERANCE = {BFLOAT16: 3e-3, FLOAT16: 4e-4}


def cache_of(T: int, bounds: list[list[list[int]]], H: int, D: int, dtype: torch.dtype) -> torch.Tensor:
    """A KV cache with random keys and values in the slots of the ranges, NaN elsewhere."""
    kv_cache = torch.full((2, T, H, D), math.nan, device="cuda", dtype=dtype)
    for first, stop in (pair for frame in bounds for pair in frame):
        if first < stop:
            kv_cache[:, first:stop] = torch.randn(2, stop - first, H, D, device="cuda").to(dtype)
    return kv_cache


def query_of(S: int, P: int, H: int, D: int, dtype: torch.dtype) -> torch.Tensor:
    return (2 * torch.randn(S, P, H, D, device="cuda")).to(dtype)


def error(out: torch.Tensor, query: torch.Tensor, kv_cache: torch.Tensor, slots: torch.Tensor) -> float:
    want = attend_ranges_reference(query, kv_cache, slots)
    return float((out.float() - want).norm() / want.norm())


def assert_right(query: torch.Tensor, kv_cache: torch.Tensor, slots: torch.Tensor) -> None:
    out = torch.full_like(query, 7.0)
    attend_ranges(query, kv_cache, slots, out)
    assert error(out, query, kv_cache, slots) <= TOLERANCE[query.dtype]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


RANGES = [
    [[[5, 133]]],  # one block
    [[[5, 132]]],  # less than one
    [[[5, 6]]],
    [[[5, 5 + 129]]],
    [[[3, 400]], [[7, 520]]],
    [[[11, 3011]]],
    [
        [[0, 0], [3, 11], [9, 4], [20, 160], [300, 556], [7, 7]],
        [[100, 101], [0, 0], [0, 0], [0, 0], [0, 0], [30, 31]],
        [[596, 600], [1, 0], [20, 160], [0, 0], [599, 600], [161, 700]],
    ],
    [[[n, n + 3 + n % 40] for n in range(0, 600, 100)]],  # partial blocks only, more than there are stages
    [[[2000, 2000 + 7 * 128], [0, 9 * 128 + 1], [1300, 1300 + 5 * 128 + 127]]],
    [[[4, 4]], [[8, 1]], [[1, 900]]],
]


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bounds", RANGES, ids=range(len(RANGES)))
def test_ranges_of_any_length(bounds: list[list[list[int]]], dtype: torch.dtype, D: int) -> None:
    for P in (1, 130):
        kv_cache = cache_of(3100, bounds, 3, D, dtype)
        slots = torch.tensor(bounds, device="cuda", dtype=torch.int32)
        assert_right(query_of(len(bounds), P, 3, D, dtype), kv_cache, slots)


@pytest.mark.parametrize("P", [1, 63, 64, 65, 128, 783, 1005])
def test_frames_of_any_number_of_tokens(P: int) -> None:
    bounds = [[[17, 3000]], [[1, 2049]]]
    kv_cache = cache_of(3010, bounds, 16, 64, BFLOAT16)
    assert_right(query_of(2, P, 16, 64, BFLOAT16), kv_cache, torch.tensor(bounds, device="cuda"))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_long_cache(dtype: torch.dtype) -> None:
    bounds = [[[101, 101 + 72360]]]
    kv_cache = cache_of(73000, bounds, 16, 64, dtype)
    assert_right(query_of(1, 1005, 16, 64, dtype), kv_cache, torch.tensor(bounds, device="cuda"))


def test_slots_beyond_what_32_bits_address() -> None:
    """Element offsets beyond 2^31, of keys and of values, and byte offsets beyond 2^32."""
    bounds = [[[2_190_000, 2_199_001], [3, 700]]]
    kv_cache = cache_of(2_200_000, bounds, 16, 64, BFLOAT16)
    assert_right(query_of(1, 100, 16, 64, BFLOAT16), kv_cache, torch.tensor(bounds, device="cuda"))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("D", [64, 128])
def test_scores_beyond_what_the_fast_kernel_holds(D: int, dtype: torch.dtype) -> None:
    """Scores that grow by hundreds after the first block, for some tokens only and for all."""
    bounds = [[[2, 2690]], [[2, 2690]]]
    kv_cache = cache_of(2700, bounds, 2, D, dtype)
    kv_cache[0] *= torch.arange(2700, device="cuda")[:, None, None].to(dtype) / 16
    query = query_of(2, 200, 2, D, dtype)
    query[0, 3:] /= 256
    query[1, :150] /= 256
    assert_right(query, kv_cache, torch.tensor(bounds, device="cuda"))


def test_non_finite_values_within_a_range_propagate() -> None:
    bounds = [[[2, 500]]]
    kv_cache = cache_of(600, bounds, 2, 64, BFLOAT16)
    kv_cache[1, 77, 1] = math.inf
    out = attend_ranges(query_of(1, 70, 2, 64, BFLOAT16), kv_cache, torch.tensor(bounds, device="cuda"))
    assert not out[:, :, 1].isfinite().any()
    assert out[:, :, 0].isfinite().all()


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bounds", RANGES, ids=range(len(RANGES)))
def test_cache_in_float8(bounds: list[list[list[int]]], dtype: torch.dtype, D: int) -> None:
    kv_cache = cache_of(3100, bounds, 3, D, dtype).to(FP8)
    assert_right(query_of(len(bounds), 200, 3, D, dtype), kv_cache, torch.tensor(bounds, device="cuda"))


def test_a_slice_of_a_fused_projection() -> None:
    bounds = [[[5, 900]], [[1, 950]]]
    kv_cache = cache_of(1000, bounds, 2, 64, BFLOAT16)
    fused = torch.randn(2, 150, 3, 2, 64, device="cuda").to(BFLOAT16)
    wide = torch.full((2, 160, 4, 2, 64), 7.0, device="cuda", dtype=BFLOAT16)
    query, out, slots = fused[:, :, 1], wide[:, 5:155, 2], torch.tensor(bounds, device="cuda")
    attend_ranges(query, kv_cache, slots, out)
    assert error(out, query, kv_cache, slots) <= TOLERANCE[BFLOAT16]
    wide[:, 5:155, 2] = 7.0
    assert (wide == 7.0).all()


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("D", [64, 128])
def test_triton_kernel(D: int, small: bool) -> None:
    """The Triton kernel, which a Hopper device otherwise uses only for repairs."""
    bounds = [[[5, 900], [901, 933]]]
    kv_cache, query = cache_of(1000, bounds, 2, D, BFLOAT16), query_of(1, 150, 2, D, BFLOAT16)
    kv_cache = kv_cache.to(FP8) if small else kv_cache
    slots, out = torch.tensor(bounds, device="cuda"), torch.full_like(query, 7.0)
    launch_ranges(check_inputs(query, kv_cache, slots, out), query, kv_cache, slots, out)
    assert error(out, query, kv_cache, slots) <= TOLERANCE[BFLOAT16]


def test_one_graph_serves_other_ranges_and_other_queries() -> None:
    kv_cache = cache_of(6000, [[[0, 6000]]], 16, 64, BFLOAT16)
    query = query_of(2, 300, 16, 64, BFLOAT16)
    slots = torch.tensor([[[3, 700], [0, 0]], [[5, 99], [0, 0]]], device="cuda", dtype=torch.int32)
    out = attend_ranges(query, kv_cache, slots)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend_ranges(query, kv_cache, slots, out)
    for bounds in ([[[9, 4000], [5000, 5950]], [[1, 2], [0, 0]]], [[[0, 0], [0, 0]], [[6, 6], [0, 1000]]]):
        slots.copy_(torch.tensor(bounds))
        query.normal_()
        graph.replay()
        assert error(out, query, kv_cache, slots) <= TOLERANCE[BFLOAT16]


def test_this_device_runs_the_kernel_for_it() -> None:
    query, kv_cache = query_of(1, 4, 2, 64, BFLOAT16), cache_of(10, [[[0, 10]]], 2, 64, BFLOAT16)
    shape = check_inputs(query, kv_cache, torch.tensor([[[0, 10]]], device="cuda"), None)
    assert supports_sm90(shape, query.device) == (torch.cuda.get_device_capability() == (9, 0))
