"""The pool grows and shrinks with its streams, keeps their tokens, and states the memory needed when it refuses one."""

import pytest
import torch
from torch import Tensor

from retinad.pipeline.cache.attention_backend import AttentionBackend
from retinad.pipeline.cache.kv_pool import KVCachePool, PoolShape, gib
from retinad.pipeline.cache.stream_cache import StreamState
from retinad.pipeline.cache.window import CacheLayout, StreamWindow
from retinad.pipeline.config import StreamConfig
from retinad.pipeline.errors import AdmissionError

from .memory import BACKENDS, LAYERS, D, H, P, S, new_pool, new_state, poison, read_all, run, tokens, write_all

TOKEN_BYTES = LAYERS * 2 * H * D * 4
STREAM = StreamConfig(2, 3, history_frames=4)
PAGES = 2 + 3 + 3
"""Pages for scale frames, window, and 4 x 3 tokens of history in pages of 5."""


def layout(frame_tokens: int = P) -> CacheLayout:
    return CacheLayout.of(STREAM, frame_tokens, S)


def filled(pool: KVCachePool, frame_tokens: int, seed: int) -> StreamState:
    state = new_state(STREAM, pool, frame_tokens)
    for number in range(7):
        run([state], [tokens(seed + number, 2 if number == 0 else 1, frame_tokens)], BACKENDS["dense"])
    return state


def test_a_pool_is_as_large_as_its_streams() -> None:
    pool = new_pool()
    assert pool.nbytes == 0
    states = [new_state(STREAM, pool) for _ in range(3)]
    assert pool.nbytes == 3 * PAGES * P * TOKEN_BYTES == sum(state.nbytes for state in states)
    states[1].free()
    states[1].free()
    assert new_state(STREAM, pool).span.start == PAGES * P  # the gap
    for owner in (*(state.owner for state in states), *(span.owner for span in pool.spans.held)):
        pool.free(owner)
    assert (pool.nbytes, pool.layer(0).numel()) == (0, 0)
    pool.check_integrity()


def test_streams_of_any_sizes_keep_their_tokens_when_the_pool_grows_or_is_packed() -> None:
    pool = new_pool()
    states = [filled(pool, size, 100 * size) for size in (5, 9, 7, 5)]
    states.pop(1).free()
    kept = [read_all(state) for state in states]
    windows = [state.window for state in states]
    new = [new_state(STREAM, pool, size) for size in (11, 7, 3, 9)]
    pool.check_integrity()
    poison(pool, [*states, *new])
    for state, before, window in zip(states, kept, windows, strict=True):
        assert torch.equal(read_all(state), before)
        assert state.window == window


def test_pages_of_any_size_are_views_of_the_pool() -> None:
    pool = new_pool()
    for size in (5, 7):
        state = filled(pool, size, 0)
        state.layer(1).normal_()  # unwritten slots may hold NaN, which equals nothing
        keys, values = pool.pages(1, size)
        span = state.span
        own = slice(span.start // span.page_tokens, span.stop // span.page_tokens)
        assert torch.equal(keys[own].flatten(0, 1), state.layer(1)[0])
        assert torch.equal(values[own].flatten(0, 1), state.layer(1)[1])
        assert keys.untyped_storage().data_ptr() == pool.layer(1).untyped_storage().data_ptr()
        assert keys.is_contiguous()
        assert values.is_contiguous()


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_a_span_freed_by_another_stream_is_as_good_as_new(backend: AttentionBackend) -> None:
    """The freed span still holds the tokens of the other stream."""
    pool = new_pool()
    used = filled(pool, P, 0)
    span = used.span
    keeper = filled(pool, P, 50)
    used.free()
    new, alone = new_state(STREAM, pool), new_state(STREAM)
    assert (new.span.start, new.span.pages) == (span.start, span.pages)
    poison(alone.pool, [alone])
    for number in range(9):
        part = tokens(300 + number, 2 if number == 0 else 1)
        assert torch.equal(run([new], [part], backend), run([alone], [part], backend))
    assert keeper.window.committed == 8


def test_one_stream_too_many_is_refused_with_the_numbers_and_nothing_changes() -> None:
    pool = new_pool(limit_bytes=2 * PAGES * P * TOKEN_BYTES + 100)
    states = [filled(pool, P, seed) for seed in (0, 50)]
    kept, spans = [read_all(state) for state in states], pool.spans
    assert not pool.can_allocate(layout())
    with pytest.raises(AdmissionError) as refusal:
        new_state(STREAM, pool)
    assert str(refusal.value) == (
        f"no memory for another stream: it needs {gib(PAGES * P * TOKEN_BYTES)} for 5 frames of 5 tokens and 4 x 3 "
        "tokens of history, each 2 layers x 2 x 2 heads x 8 x 4 bytes; 2 streams use "
        f"{gib(2 * PAGES * P * TOKEN_BYTES)}, the limit is {gib(2 * PAGES * P * TOKEN_BYTES + 100)}"
    )
    assert pool.spans == spans
    assert all(torch.equal(read_all(state), before) for state, before in zip(states, kept, strict=True))
    states[0].free()
    assert pool.can_allocate(layout())
    new_state(STREAM, pool)


class Full(KVCachePool):
    """A pool whose device runs out of memory once, after a number of allocations."""

    left = 10**6

    def _empty(self, count: int) -> Tensor:
        if self.left == 0:
            self.left = 10**6
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.left -= 1
        return super()._empty(count)


@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_device_out_of_memory_while_the_pool_grows_leaves_all_streams_unchanged(layer: int) -> None:
    pool = Full(new_pool().shape)
    states = [filled(pool, size, size) for size in (5, 7)]
    kept, spans = [read_all(state) for state in states], pool.spans
    pool.left = layer
    with pytest.raises(AdmissionError, match="the device has no memory left: CUDA out of memory"):
        pool.allocate(layout(9))
    pool.check_integrity()
    assert pool.spans == spans
    assert all(torch.equal(read_all(state), before) for state, before in zip(states, kept, strict=True))
    pool.allocate(layout(9))
    pool.check_integrity()


def test_a_device_failure_is_not_a_refusal() -> None:
    class Broken(KVCachePool):
        def _empty(self, count: int) -> Tensor:
            if count:
                raise torch.AcceleratorError("CUDA error: unspecified launch failure")
            return super()._empty(count)

    with pytest.raises(torch.AcceleratorError):
        Broken(new_pool().shape).allocate(layout())


def test_a_pool_without_layers_takes_no_memory() -> None:
    pool = KVCachePool(PoolShape(0, H, D, torch.float32, torch.device("cpu")), limit_bytes=0)
    state = StreamState.allocate(pool, StreamWindow(layout()))
    StreamState.allocate(pool, StreamWindow(layout()))
    pool.check_integrity()
    assert (pool.nbytes, state.nbytes, pool.version) == (0, 0, 0)


def test_memory_allocated_in_inference_mode_can_be_written_outside_inference_mode() -> None:
    with torch.inference_mode():
        state = filled(new_pool(), P, 0)
        kept = read_all(state)
    write_all(state, kept.clone())


def test_sizes_have_binary_units() -> None:
    assert [gib(count) for count in (0, 3 << 19, 3 << 29)] == ["0.0 MiB", "1.5 MiB", "1.50 GiB"]
