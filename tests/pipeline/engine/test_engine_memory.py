"""Streams allocate memory for their image size and free it, or are refused with the memory that they would need."""

import gc
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import FrameType

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from retinad.pipeline.cache.attention_backend import AttentionBackend, KeysValues, LayerAttention
from retinad.pipeline.cache.kv_pool import KVCachePool
from retinad.pipeline.cache.page_table import PageTable, VisibleRanges
from retinad.pipeline.config import AttentionName, ResizeMode, StreamConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.outputs import OutputHeads
from retinad.pipeline.errors import AdmissionError, ModelError
from retinad.pipeline.frames import Features, Frame, FrameFailure, FrameStamp, Size

from ..cache.memory import read_all
from .engine_rig import CONFIG, good

STREAM = StreamConfig(scale_frames=1, window=2, history_frames=4)
LARGE, SMALL = (64, 48), (64, 24)
TOKEN_BYTES = 2 * 2 * 32 * 4
LARGE_BYTES = 5 * 18 * TOKEN_BYTES
"""4 x 3 patches and 6 special tokens; one scale frame, two window frames, and 4 x 6 tokens of history in two pages."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(CONFIG) as engine:
        yield engine


def frame(camera: str, number: int, size: Size = LARGE, stream_epoch: int = 0) -> Frame:
    pixels = np.random.default_rng([sum(camera.encode()), number]).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Frame(FrameStamp(camera, stream_epoch, number, 0, 0, None, size), pixels)


def open_streams(engine: Engine, cameras: str) -> None:
    for camera in cameras:
        engine.open_stream(camera, STREAM, ResizeMode.CROP)


# Allocation


def test_memory_is_allocated_at_the_first_frame_and_freed_when_a_stream_closes(engine: Engine) -> None:
    open_streams(engine, "ab")
    assert engine.pool.nbytes == 0
    engine.step([frame("a", 0)])
    assert engine.pool.nbytes == LARGE_BYTES == engine.statistics().streams[0].nbytes
    engine.step([frame("b", 0)])
    assert engine.pool.nbytes == 2 * LARGE_BYTES
    engine.close_stream("a")
    open_streams(engine, "c")
    engine.step([frame("c", 0)])
    assert engine.pool.nbytes == 2 * LARGE_BYTES
    engine.close()
    assert engine.pool.nbytes == 0


def test_warming_up_leaves_no_memory_behind(engine: Engine) -> None:
    engine.warm_up([LARGE, SMALL])
    assert engine.pool.nbytes == 0


def test_a_new_connection_keeps_the_memory_and_a_new_size_replaces_it(engine: Engine) -> None:
    open_streams(engine, "a")
    engine.step([frame("a", 0)])
    first = engine.pool.spans.held
    (record,) = good(engine.step([frame("a", 1, stream_epoch=1)]))
    assert (record.epoch, engine.pool.spans.held) == (1, first)
    (record,) = good(engine.step([frame("a", 2, SMALL, stream_epoch=1)]))
    (span,) = engine.pool.spans.held
    assert (record.epoch, span.page_tokens) == (2, 14)
    engine.pool.check_integrity()


# Admission


def test_one_stream_too_many_is_refused_with_the_sum() -> None:
    with Engine(replace(CONFIG, max_streams=2)) as engine:
        open_streams(engine, "ab")
        engine.step([frame("a", 0)])
        with pytest.raises(AdmissionError) as refusal:
            open_streams(engine, "c")
        assert str(refusal.value) == (
            "camera 'c' exceeds max_streams = 2, as 2 streams are open: raise it or disable a camera. The caches of "
            "the open streams use 0.0 MiB of memory, and this stream's would use up to 0.1 MiB "
            "for 3 frames of 22 tokens and 4 x 6 tokens of history, each 2 layers x 2 x 2 heads x 16 x 4 bytes"
        )
        engine.close_stream("a")
        open_streams(engine, "c")
        good(engine.step([frame("b", 0), frame("c", 0)]))


@pytest.fixture
def small_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Make an engine whose device has memory for two large streams."""
    monkeypatch.setattr("retinad.pipeline.engine.engine.memory_limit", lambda device: 2 * LARGE_BYTES)
    with Engine(CONFIG) as engine:
        yield engine


def test_frames_of_a_stream_without_memory_fail_until_there_is_room_and_others_continue(small_engine: Engine) -> None:
    engine = small_engine
    open_streams(engine, "abc")
    for number in range(3):
        outcomes = engine.step([frame(camera, number) for camera in "abc"])
        (failure,) = (outcome for outcome in outcomes if isinstance(outcome, FrameFailure))
        assert failure.stamp.camera == "c"
        assert "no memory for another stream" in failure.reason
        assert "2 streams use" in failure.reason
        assert len(outcomes) == 3
    assert engine.statistics().failures == 3
    engine.close_stream("a")
    records = [*good(engine.step([frame("b", 3), frame("c", 3)])), *good(engine.step([frame("c", 4)]))]
    with Engine(CONFIG) as alone:
        open_streams(alone, "c")
        expected = [*good(alone.step([frame("c", 3)])), *good(alone.step([frame("c", 4)]))]
    for actual, other in zip(records[1:], expected, strict=True):
        for one, two in zip(actual.tensors, other.tensors, strict=True):
            np.testing.assert_allclose(one.data, two.data, rtol=0, atol=1e-5)


def test_a_backend_that_cannot_run_fails_when_the_engine_is_loaded() -> None:
    with pytest.raises(ModelError, match="runs on CUDA, not on cpu"):
        Engine(replace(CONFIG, attention="flashinfer"))


def test_the_description_says_which_backend_runs_and_why(engine: Engine) -> None:
    assert (engine.description.attention, engine.description.attention_reason) == (
        "dense",
        "triton runs on CUDA, not on cpu",
    )
    named = Engine(replace(CONFIG, attention="dense")).description
    assert (named.attention, named.attention_reason) == ("dense", None)


# Backends


def test_the_paged_engine_equals_the_dense_one_for_cameras_of_all_kinds() -> None:
    cameras = {
        "a": (StreamConfig(2, 3), LARGE),
        "b": (StreamConfig(1, 2, keyframe_interval=3, history_frames=1), LARGE),
        "c": (StreamConfig(3, 1), SMALL),
    }
    records: dict[str, list[Features]] = {}
    for attention in ("dense", "paged"):
        with Engine(replace(CONFIG, attention=attention)) as engine:
            for camera, (stream, _) in cameras.items():
                engine.open_stream(camera, stream, ResizeMode.CROP)
            steps = [[frame(camera, number, size) for camera, (_, size) in cameras.items()] for number in range(12)]
            records[attention] = [record for step in steps for record in good(engine.step(step))]
    assert len(records["dense"]) == len(records["paged"]) == 36
    for one, other in zip(*records.values(), strict=True):
        assert one.stamp == other.stamp
        for dense, paged in zip(one.tensors, other.tensors, strict=True):
            np.testing.assert_allclose(paged.data, dense.data, rtol=0, atol=1e-5)


# Faults


class Broken:
    """A backend that fails in its plan (layer None) or in a layer, once `armed`."""

    def __init__(self, backend: AttentionBackend, layer: int | None) -> None:
        self._backend = backend
        self._layer = layer
        self.armed = False

    whole_pages = True

    def plan(self, pool: KVCachePool, visible: Sequence[VisibleRanges]) -> LayerAttention:
        if self.armed and self._layer is None:
            raise RuntimeError("injected")
        attend, armed = self._backend.plan(pool, visible), self.armed

        def attend_or_fail(layer: int, query: Tensor, beside: KeysValues | None = None, /) -> Tensor:
            if armed and layer == self._layer:
                raise RuntimeError("injected")
            return attend(layer, query, beside)

        return attend_or_fail


@pytest.mark.parametrize("attention", ["dense", "paged"])
@pytest.mark.parametrize("site", [None, 0, 1, "unpack"])
@pytest.mark.parametrize("age", [0, 3, 8])
def test_a_fault_anywhere_in_a_step_resets_its_streams_and_they_continue_like_new_ones(
    attention: AttentionName, site: int | str | None, age: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_unpack(*_: object) -> None:
        raise RuntimeError("injected")

    with Engine(replace(CONFIG, attention=attention)) as engine, Engine(replace(CONFIG, attention=attention)) as fresh:
        broken = Broken(engine.model_runner.backend, None if site is None else site if isinstance(site, int) else -1)
        engine.model_runner.backend = broken
        open_streams(engine, "abc")
        open_streams(fresh, "ab")
        sizes = {"a": LARGE, "b": LARGE, "c": SMALL}
        for number in range(age):
            good(engine.step([frame(camera, number, size) for camera, size in sizes.items()]))
        kept = read_all(engine.streams["c"].state) if age else None  # type: ignore[arg-type]
        broken.armed = True
        with monkeypatch.context() as patch:
            if site == "unpack":
                patch.setattr(OutputHeads, "unpack", no_unpack)
            failed = engine.step([frame(camera, age, LARGE) for camera in "ab"])
        broken.armed = False
        assert all(isinstance(outcome, FrameFailure) and "injected" in outcome.reason for outcome in failed)
        engine.pool.check_integrity()
        if kept is not None:
            assert torch.equal(read_all(engine.streams["c"].state), kept)  # type: ignore[arg-type]
        for number in range(age + 1, age + 7):
            pair = [frame(camera, number, LARGE) for camera in "ab"]
            for actual, expected in zip(good(engine.step(pair)), good(fresh.step(pair)), strict=True):
                for one, other in zip(actual.tensors, expected.tensors, strict=True):
                    np.testing.assert_array_equal(one.data, other.data)


# Work on the host


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts PyTorch's operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Tables:
    """A backend that records the sizes of its page tables."""

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend
        self.sizes: list[tuple[int, ...]] = []

    whole_pages = True

    def plan(self, pool: KVCachePool, visible: Sequence[VisibleRanges]) -> LayerAttention:
        table = PageTable.of(visible)
        self.sizes.append((len(table.query_starts), len(table.page_starts), len(table.pages), sum(table.tokens)))
        return self._backend.plan(pool, visible)


def python_calls(engine: Engine, one: Frame) -> int:
    count = 0

    def notice(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # a collection in between would call finalizers and other libraries' callbacks
    sys.setprofile(notice)
    try:
        good(engine.step([one]))
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("attention", ["dense", "paged"])
def test_host_work_of_a_step_does_not_grow_with_the_age_of_the_stream(attention: AttentionName) -> None:
    """The numbers of operations and Python calls, and the plan's sizes, are equal at ages 10 and 10,000.

    In the reference, they keep growing.
    """
    with Engine(replace(CONFIG, attention=attention)) as engine:
        tables = engine.model_runner.backend = Tables(engine.model_runner.backend)
        open_streams(engine, "a")
        for number in range(10):
            engine.step([frame("a", number)])
        work = []
        for age in (10, 10_000):
            state = engine.streams["a"].state
            assert state is not None
            state.window = replace(state.window, committed=age, later=age - 1)
            with Operations() as seen:
                good(engine.step([frame("a", age)]))
            work.append((seen.counts, python_calls(engine, frame("a", age + 1)), tables.sizes[-2:]))
    assert work[0] == work[1]
    assert sum(work[0][0].values()) > 50
    assert work[0][2][0] == (2, 2, 5, 3 * 18 + 4 * 6)
