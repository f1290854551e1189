"""When steps are captured and what their graphs read, on the CPU: here, replaying a graph reruns the captured step."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from retinad.pipeline.cache.backends.triton import TritonBackend
from retinad.pipeline.cache.kv_pool import KVCachePool
from retinad.pipeline.config import MixerName, ModelConfig, NetworkConfig, OutputConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine import cuda_graphs
from retinad.pipeline.engine.cuda_graphs import CudaGraphRunner
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.fused_model import FusedAggregator
from retinad.pipeline.engine.heads import make_heads
from retinad.pipeline.engine.outputs import OutputHeads
from retinad.pipeline.engine.token_shape import TokenShape
from retinad.pipeline.errors import DeviceError
from retinad.pipeline.frames import Flag, FrameFailure, TokenGroup
from retinad.pipeline.model.aggregator import Aggregator
from retinad.pipeline.model.dinov2 import DinoPatches

from .engine_rig import assert_same, bad, frame, good, model_of
from .output_rig import heads_with_mean
from .replay_rig import ReplayedOnCpu

HYBRID: tuple[MixerName, ...] = ("kda", "attention")
NETWORK = NetworkConfig(channels=64, heads=4, depth=2, patch_embed="conv", mixers=HYBRID)
OUTPUT = OutputConfig(layers=(0, 1), tokens=tuple(TokenGroup), pool=2, dtype="float32")
CONFIG = ModelConfig(name="test", network=NETWORK, image_width=56, output=OUTPUT, dtype="bfloat16", attention="dense")
STREAM = StreamConfig(1, 3, history_frames=2)


def captured_engine(config: ModelConfig = CONFIG) -> tuple[Engine, ReplayedOnCpu]:
    engine = Engine(config)
    engine.model_runner.backend = TritonBackend()
    graphs = ReplayedOnCpu(FusedAggregator(model_of(engine)), engine.pool, engine.pose_pool, engine.model_runner.heads)
    engine.model_runner.graphs = graphs
    return engine, graphs


@pytest.fixture
def rig() -> Iterator[tuple[Engine, ReplayedOnCpu]]:
    engine, steps = captured_engine()
    with engine:
        yield engine, steps


@pytest.fixture(autouse=True)
def _unused_places_are_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = KVCachePool._empty
    monkeypatch.setattr(KVCachePool, "_empty", lambda pool, tokens: empty(pool, tokens).fill_(float("nan")))


@pytest.fixture(autouse=True)
def _references_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the kernels' references, even if other tests chose Triton's interpreter, which takes seconds per step."""
    monkeypatch.setattr("retinad.kernels.backend.TRITON_INSTALLED", False)


def fail(*_: object) -> None:
    raise ValueError("injected")


STREAMS = {
    "a": StreamConfig(2, 3, history_frames=2, run_frames=3),
    "b": StreamConfig(1, 4, keyframe_interval=2, epoch_frames=7, carry_state=True),
    "c": StreamConfig(3, 1, history_frames=0),
}


def test_replayed_steps_equal_those_without_graphs_in_every_mixture_of_streams() -> None:
    engine, steps = captured_engine()
    plain, fused = captured_engine()
    fused._capture = False
    with engine, plain:
        for one in (engine, plain):
            for camera, stream in STREAMS.items():
                one.open_stream(camera, stream, ResizeMode.CROP)
        for number in range(24):
            cameras = [c for i, c in enumerate(STREAMS) if number >= 2 * i and (number + i) % 4]
            frames = [frame(camera, number) for camera in cameras]
            if "a" in cameras and number % 5 == 0:
                frames += [frame("a", 100 + number), frame("a", 200 + number)]
            for actual, expected in zip(good(engine.step(frames)), good(plain.step(frames)), strict=True):
                assert (actual.stamp, actual.epoch, actual.keyframe) == (
                    expected.stamp,
                    expected.epoch,
                    expected.keyframe,
                )
                assert_same(actual, expected, tolerance=0)
        assert steps.replays > 6


def test_an_output_of_several_layers_is_the_same_in_replayed_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinad.pipeline.engine.engine.make_heads", heads_with_mean)
    engine, graphs = captured_engine()
    with engine, captured_engine()[0] as without:
        assert without.model_runner.graphs is not None
        without.model_runner.graphs._capture = False
        for one in (engine, without):
            one.open_stream("a", STREAM, ResizeMode.CROP)
        for number in range(6):
            (actual,), (expected,) = (good(one.step([frame("a", number)])) for one in (engine, without))
            assert [tensor.name for tensor in actual.tensors][-2:] == ["mean/tokens", "mean/count"]
            assert_same(actual, expected, tolerance=0)
        state = engine.streams["a"].state
        assert state is not None
        for part in state.kept(0):
            part.fill_(float("nan"))
        (spoilt,) = good(engine.step([frame("a", 6)]))
    assert graphs.replays == 5
    assert Flag.NAN in spoilt.flags


def test_a_kind_of_step_is_captured_at_its_second_run_and_again_when_the_memory_moves(
    rig: tuple[Engine, ReplayedOnCpu],
) -> None:
    engine, steps = rig
    engine.open_stream("a", STREAM, ResizeMode.CROP)
    counts = []
    for number in range(8):
        if number == 4:
            engine.open_stream("b", STREAM, ResizeMode.CROP)
            good(engine.step([frame("b", 0)]))
        good(engine.step([frame("a", number)]))
        counts.append((len(steps.captures), steps.replays))
    assert counts == [(0, 0), (0, 0), (1, 1), (1, 2), (1, 2), (2, 3), (2, 4), (2, 5)]


def test_a_run_that_fails_does_not_count_as_the_one_before_a_capture(
    rig: tuple[Engine, ReplayedOnCpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that the failed run did not reach would be launched for the first time and compiled during a capture."""

    engine, steps = rig
    engine.open_stream("a", STREAM, ResizeMode.CROP)
    good(engine.step([frame("a", 0)]))
    with monkeypatch.context() as patch:
        patch.setattr(OutputHeads, "gather", fail)
        bad(engine.step([frame("a", 1)]))
    for number in range(2, 4):
        good(engine.step([frame("a", number)]))
    assert not steps.captures
    good(engine.step([frame("a", 4)]))
    assert len(steps.captures) == 1


def test_without_memory_for_a_graph_steps_run_without_and_the_capture_is_retried_much_later(
    rig: tuple[Engine, ReplayedOnCpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graphs, "RETRY_RUNS", 5)
    engine, steps = rig
    steps.errors = [torch.OutOfMemoryError("CUDA out of memory")]
    engine.open_stream("a", STREAM, ResizeMode.CROP)
    with captured_engine()[0] as other:
        assert other.model_runner.graphs is not None
        other.model_runner.graphs._capture = False
        other.open_stream("a", STREAM, ResizeMode.CROP)
        for number in range(12):
            (actual,), (expected,) = (good(one.step([frame("a", number)])) for one in (engine, other))
            assert actual.epoch == 0
            assert_same(actual, expected, tolerance=0)
            assert len(steps.captures) == (0 if number < 2 else 1 if number < 8 else 2)
    assert steps.replays == 4


def test_a_capture_that_fails_otherwise_fails_the_step(rig: tuple[Engine, ReplayedOnCpu]) -> None:
    engine, steps = rig
    steps.errors = [RuntimeError("injected")]
    engine.open_stream("a", STREAM, ResizeMode.CROP)
    outcomes = [outcome for number in range(5) for outcome in engine.step([frame("a", number)])]
    assert [isinstance(outcome, FrameFailure) for outcome in outcomes] == [False, False, True, False, False]


def test_a_capture_that_breaks_the_device_ends_the_engine_and_names_the_alternative(
    rig: tuple[Engine, ReplayedOnCpu],
) -> None:
    engine, steps = rig
    steps.errors = [torch.AcceleratorError("CUDA error: operation failed due to a previous error during capture")]
    engine.open_stream("a", STREAM, ResizeMode.CROP)
    for number in range(2):
        good(engine.step([frame("a", number)]))
    with pytest.raises(DeviceError, match=r"previous error during capture \(with execution = 'fused' none is needed\)"):
        engine.step([frame("a", 2)])


def test_after_a_fault_that_follows_a_replay_streams_equal_new_ones(
    rig: tuple[Engine, ReplayedOnCpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faulty step had already written keys, values and states, in layers that no table mentions."""

    engine, steps = rig
    streams = {"a": STREAM, "b": replace(STREAM, keyframe_interval=2)}
    for camera, stream in streams.items():
        engine.open_stream(camera, stream, ResizeMode.CROP)
    for number in range(7):
        good(engine.step([frame(camera, number) for camera in streams]))
    replays = steps.replays
    with monkeypatch.context() as patch:
        patch.setattr(OutputHeads, "unpack", fail)
        assert len(bad(engine.step([frame(camera, 7) for camera in streams]))) == 2
    assert steps.replays == replays + 1
    with captured_engine()[0] as fresh:
        for camera, stream in streams.items():
            fresh.open_stream(camera, stream, ResizeMode.CROP)
        for number in range(8, 16):
            pair = [frame(camera, number) for camera in streams]
            for actual, expected in zip(good(engine.step(pair)), good(fresh.step(pair)), strict=True):
                assert (actual.epoch, actual.epoch_frame) == (1, expected.epoch_frame)
                assert_same(actual, expected, tolerance=0)


def test_more_kinds_of_steps_than_graphs_do_not_evict_each_other_at_every_step(
    rig: tuple[Engine, ReplayedOnCpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", 2)
    monkeypatch.setattr(cuda_graphs, "EARNED_RUNS", 10)
    engine, steps = rig
    for camera in "abc":
        engine.open_stream(camera, STREAM, ResizeMode.CROP)
    for number in range(26):
        for cameras in ("a", "ab", "abc"):
            good(engine.step([frame(camera, 10 * number + len(cameras)) for camera in cameras]))
    assert len(steps._graphs) == 2
    assert 3 <= len(steps.captures) <= 6


@torch.inference_mode()
def test_tables_that_a_graph_reads_are_made_before_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables made during a capture would have no values until a replay, but steps without a graph would read them."""
    network = replace(NETWORK, channels=384, heads=6, depth=1, patch_embed="dinov2_vits14_reg", mixers=("attention",))
    config = replace(CONFIG, network=network, output=replace(OUTPUT, layers=(0,)))
    engine = Engine(config)
    model = model_of(engine)
    graphs = CudaGraphRunner(
        FusedAggregator(model), engine.pool, engine.pose_pool, make_heads(config, model), capture=True
    )
    made: set[str] = set()
    made_before: set[str] = set()

    def record(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def recorded(self: object, *grid: int) -> object:
            made.add(name)
            return original(self, *grid)

        monkeypatch.setattr(owner, name, recorded)

    class Capturing:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> None:
            made_before.update(made)
            raise torch.OutOfMemoryError("no further")

        def __exit__(self, *_: object) -> None: ...

    record(Aggregator, "grid_tables")
    record(DinoPatches, "patch_positions")
    monkeypatch.setattr(torch.cuda, "graph", Capturing)
    for name in ("stream", "Stream", "CUDAGraph", "current_stream", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: nullcontext())
    kind = TokenShape.of(network, (3, 4)), (frozenset(config.outputs),), 0
    with pytest.raises(torch.OutOfMemoryError, match="no further"):
        graphs._captured(kind, [torch.zeros(3, 42, 56)], None)
    assert made_before == {"grid_tables", "patch_positions"}


def test_host_tables_of_a_failed_step_are_not_reused(
    rig: tuple[Engine, ReplayedOnCpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, steps = rig
    engine.open_stream("a", STREAM, ResizeMode.CROP)
    good(engine.step([frame("a", 0)]))
    before = steps._host[1].flat
    with monkeypatch.context() as patch:
        patch.setattr(OutputHeads, "gather", fail)
        bad(engine.step([frame("a", 1)]))
    values = before.clone()
    good(engine.step([frame("a", 2)]))
    assert torch.equal(before, values)
