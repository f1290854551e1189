"""On a GPU, FlashInfer's kernels agree with the dense backend: real sizes, odd sizes, poison, distant pages."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from retinad.pipeline.cache.backends.dense import DenseBackend, attend_all, gather
from retinad.pipeline.cache.backends.flashinfer import FlashInferBackend, open_flashinfer
from retinad.pipeline.cache.kv_pool import KVCachePool, PoolShape
from retinad.pipeline.cache.page_table import VisibleRanges, visible_ranges
from retinad.pipeline.cache.step import Step
from retinad.pipeline.cache.stream_cache import StreamState
from retinad.pipeline.cache.window import CacheLayout, StreamWindow
from retinad.pipeline.config import FlashInferKernels, StreamConfig
from retinad.pipeline.errors import ModelError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

H, D, S = 16, 64, 6
DTYPE = torch.bfloat16
SHAPE = PoolShape(1, H, D, DTYPE, torch.device("cuda:0"))
FLASHINFER_ERROR = 1e-2
"""Relative norm of the error against float32: bfloat16 has 8 bits. For measurements see docs/attention.md."""


@pytest.fixture(scope="module", params=["fa2", "fa3"])
def backend(request: pytest.FixtureRequest) -> FlashInferBackend:
    kernels: FlashInferKernels = request.param
    if kernels == "fa3" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("fa3 is for Hopper")
    try:
        return open_flashinfer(SHAPE, kernels)
    except ModelError as error:
        if "No module named" in str(error):
            pytest.skip(str(error))
        raise


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, dtype=torch.float32, device="cuda", generator=generator).to(DTYPE)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


def poisoned(pages: Sequence[tuple[int, int]]) -> KVCachePool:
    """A pool full of NaN with one span per (tokens of a page, number of pages)."""
    pool = KVCachePool(SHAPE)
    for page_tokens, count in pages:
        pool.allocate_pages(page_tokens, count)
    pool.layer(0).fill_(math.nan)
    return pool


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual.float() - expected).norm() / expected.norm())


def exact(query: Tensor, pool: KVCachePool, group: VisibleRanges) -> Tensor:
    keys, values = gather(pool.layer(0), group).float().unbind(0)
    return attend_all(query.float(), keys, values)


# Numbers


@pytest.mark.parametrize("page", [4, 42, 256, 777, 999, 1005, 1024])
def test_ones_give_ones_for_any_page_size_with_nan_in_every_other_slot(backend: FlashInferBackend, page: int) -> None:
    """An implementation that rounds pages up and attends to padding returns 0.985 for 999 tokens, 0.840 for 777."""
    pool, generator = poisoned([(page, 9)]), seeded(page)
    for seen in sorted({1, page - 1, page, page + 1, 3 * page + S, 6 * page + 1, 7 * page}):
        pool.layer(0).fill_(math.nan)
        pool.layer(0)[0, page : page + seen] = 3 * normal(seen, H, D, generator=generator)
        pool.layer(0)[1, page : page + seen] = 1
        query = normal(page, H, D, generator=generator)
        out = backend.plan(pool, [VisibleRanges(page, ((page, page + seen),), page)])(0, query)
        assert (out.float() - 1).abs().max() <= 1e-3, seen


@pytest.mark.parametrize("seed", range(4))
def test_random_ranges_of_random_streams_equal_float32(backend: FlashInferBackend, seed: int) -> None:
    """Many consecutive plans of one to eight streams."""
    rng, generator = random.Random(seed), seeded(seed)
    for _ in range(60):
        page = rng.choice((1, 2, 5, 6, 7, 22, 63, 64, 65, 130))
        pool = poisoned([(page, rng.randint(1, 40)) for _ in range(rng.randint(1, 8))])
        visible = []
        for span in pool.spans.held:
            first = rng.randrange(span.pages)
            stop = rng.randint(span.start + first * page + 1, span.stop)
            visible.append(VisibleRanges(rng.choice((1, page, 3 * page)), ((span.start + first * page, stop),), page))
            start = visible[-1].ranges[0][0]
            pool.layer(0)[:, start:stop] = 2 * normal(2, stop - start, H, D, generator=generator)
        rows = [group.rows for group in visible]
        query = normal(sum(rows), H, D, generator=generator)
        out = backend.plan(pool, visible)(0, query)
        for group, part, actual in zip(visible, query.split_with_sizes(rows), out.split_with_sizes(rows), strict=True):
            assert relative(actual, exact(part, pool, group)) <= FLASHINFER_ERROR, group


@pytest.mark.parametrize("key", [75, -6.25])
def test_large_equal_logits_give_the_mean(backend: FlashInferBackend, key: float) -> None:
    """Logits of 6e4 and of -5e3. Below -6250 flashinfer 0.6.13 returns zeros: see the backend's module."""
    pool, page = poisoned([(100, 4)]), 100
    pool.layer(0)[0, :250] = key
    pool.layer(0)[1, :250] = normal(250, H, D, generator=seeded(0))
    query = torch.full((page, H, D), 100, dtype=DTYPE, device="cuda")
    out = backend.plan(pool, [VisibleRanges(page, ((0, 250),), page)])(0, query)
    mean = pool.layer(0)[1, :250].float().mean(0).expand(page, H, D)
    assert (out.float() - mean).abs().max() <= 2e-3


def test_pages_beyond_32_bits_of_numbers_are_read_correctly(backend: FlashInferBackend) -> None:
    """Page number times stride exceeds 2^31; a 32-bit product would read out of bounds."""
    page = 1005
    pages = 2**31 // (page * H * D) + 3
    pool, query = KVCachePool(SHAPE), normal(page, H, D, generator=seeded(0))
    pool.allocate_pages(page, pages)
    data, outputs = 2 * normal(2, 2 * page, H, D, generator=seeded(1)), []
    for start in (0, (pages - 2) * page):
        pool.layer(0)[:, : 2 * page] = math.nan
        pool.layer(0)[:, start : start + 2 * page] = data
        outputs.append(backend.plan(pool, [VisibleRanges(page, ((start, start + 2 * page - 7),), page)])(0, query))
    assert torch.equal(*outputs)
    assert (
        relative(outputs[1], exact(query, pool, VisibleRanges(page, ((start, start + 2 * page - 7),), page)))
        <= FLASHINFER_ERROR
    )


# A stream's life


@dataclass
class Errors:
    """Largest relative errors against float32."""

    flashinfer: float = 0.0
    dense: float = 0.0


def live(backend: FlashInferBackend, streams: int, steps: int, frame_tokens: int, stream: StreamConfig) -> Errors:
    """Run streams in one pool that is NaN where nothing was written; each stream joins one step after the last."""
    layout, errors, generator = CacheLayout.of(stream, frame_tokens, S), Errors(), seeded(7)
    pool = KVCachePool(SHAPE)
    states = [StreamState.allocate(pool, StreamWindow(layout)) for _ in range(streams)]
    pool.layer(0).fill_(math.nan)
    for number in range(steps):
        present = states[: number + 1]
        frames = [1 if state.window.committed else stream.scale_frames for state in present]
        query, key, value = (normal(sum(frames), frame_tokens, H, D, generator=generator) for _ in range(3))
        query = 2 * query
        with Step(present, frames, backend) as step:
            step.append(0, key, value)
            out = step.attend(0, query)
            visible = [
                part
                for state, plan in zip(present, step.plans, strict=True)
                for part in visible_ranges(state.span, plan)
            ]
            if number % 20 < 2 or number > steps - 3:
                compare(errors, pool, visible, query.flatten(0, 1), out.flatten(0, 1))
            step.commit()
    return errors


def compare(errors: Errors, pool: KVCachePool, visible: list[VisibleRanges], query: Tensor, out: Tensor) -> None:
    dense = DenseBackend().plan(pool, visible)(0, query)
    rows = [group.rows for group in visible]
    parts = (tensor.split_with_sizes(rows) for tensor in (query, out, dense))
    for group, part, one, other in zip(visible, *parts, strict=True):
        expected = exact(part, pool, group)
        assert one.isfinite().all()
        errors.flashinfer = max(errors.flashinfer, relative(one, expected))
        errors.dense = max(errors.dense, relative(other, expected))


@pytest.mark.parametrize("streams", [1, 4])
def test_200_steps_at_real_size_are_as_exact_as_dense(backend: FlashInferBackend, streams: int) -> None:
    errors = live(backend, streams, 200, 1005, StreamConfig(scale_frames=8, window=64, history_frames=100))
    print(f"\n{backend.kernels}, {streams} streams, 200 steps: {errors}")
    assert errors.flashinfer <= FLASHINFER_ERROR
    assert errors.flashinfer <= 1.05 * errors.dense


@pytest.mark.parametrize("frame_tokens", [10, 22, 63, 783])
@pytest.mark.parametrize("interval", [1, 3])
def test_small_and_odd_frames_and_keyframe_intervals(
    backend: FlashInferBackend, frame_tokens: int, interval: int
) -> None:
    errors = live(backend, 3, 60, frame_tokens, StreamConfig(3, 5, interval, history_frames=17))
    assert errors.flashinfer <= FLASHINFER_ERROR
