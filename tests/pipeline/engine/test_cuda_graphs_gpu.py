"""On a GPU, captures that fail, are cut short or meet evicted tables leave steps right; so do other devices."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from retinad.pipeline.config import ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine import cuda_graphs as captured
from retinad.pipeline.engine.cuda_graphs import CudaGraphRunner
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Size

from .engine_rig import frame, good
from .test_fused_model_gpu import CONFIG, DINO, ERROR, HYBRID, NETWORK, error

pytestmark = pytest.mark.gpu

STREAM = StreamConfig(1, 3, history_frames=4)
NETWORKS = [replace(NETWORK, mixers=HYBRID), DINO]
SIZES: tuple[Size, ...] = ((112, 84), (112, 56), (112, 112))


def steps_of(engine: Engine) -> CudaGraphRunner:
    fused = engine._model_runner._fused
    assert fused is not None
    return fused


def run_beside(config: ModelConfig, engine: Engine, numbers: range, sizes: tuple[Size, ...] = SIZES[:1]) -> None:
    """Steps of a camera of each size; each frame equals that of an engine without graphs."""
    with Engine(replace(config, execution="fused")) as plain:
        for one in (engine, plain):
            for index, _ in enumerate(sizes):
                one.open_stream(f"c{index}", STREAM, ResizeMode.CROP)
        for number in numbers:
            for index, size in enumerate(sizes):
                (actual,), (expected,) = (good(e.step([frame(f"c{index}", number, size)])) for e in (engine, plain))
                assert (actual.epoch, actual.epoch_frame) == (expected.epoch, expected.epoch_frame)
                assert error(actual, expected) <= ERROR, (number, size)


@pytest.mark.parametrize("network", NETWORKS, ids=["hybrid", "dinov2"])
def test_a_capture_that_runs_out_of_memory_midway_costs_no_frame_and_may_succeed_later(
    network: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scratch pool, whose only graph is gone, must not be used again: PyTorch refuses that."""
    config = replace(CONFIG, network=network, execution="captured")  # type: ignore[arg-type]
    monkeypatch.setattr(captured, "RETRY_RUNS", 3)
    gather, failures = captured.gather, 0

    def fail(*args: object) -> object:
        nonlocal failures
        if torch.cuda.is_current_stream_capturing() and failures < 2:
            failures += 1
            next(iter(args[0]))  # type: ignore[call-overload]
            raise torch.OutOfMemoryError("CUDA out of memory: injected")
        return gather(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(captured, "gather", fail)
    stream = torch.cuda.current_stream()
    with Engine(config) as engine:
        run_beside(config, engine, range(16))
        assert failures == 2
        assert len(steps_of(engine)._graphs) == 1
    assert torch.cuda.current_stream() == stream


@pytest.mark.parametrize("network", NETWORKS, ids=["hybrid", "dinov2"])
def test_tables_that_were_evicted_before_the_capture_are_made_before_it(
    network: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinad.pipeline.model.aggregator.CACHED_GRIDS", 1)
    monkeypatch.setattr("retinad.pipeline.model.dinov2.CACHED_GRIDS", 1)
    config = replace(CONFIG, network=network, execution="captured")  # type: ignore[arg-type]
    with Engine(config) as engine:
        run_beside(config, engine, range(8), SIZES)
        assert len(steps_of(engine)._graphs) == len(SIZES)


def test_more_kinds_of_steps_than_graphs_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MOST_GRAPHS", 2)
    monkeypatch.setattr(captured, "EARNED_RUNS", 3)
    config = replace(CONFIG, execution="captured")
    with Engine(config) as engine:
        run_beside(config, engine, range(20), SIZES)
        assert len(steps_of(engine)._graphs) == 2


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_second_device_gives_the_numbers_of_the_first() -> None:
    """In a process of its own: the engine makes its device the thread's current one."""
    program = """
from dataclasses import replace
from tests.pipeline.test_captured_gpu import CONFIG, run_beside, steps_of
from retinad.pipeline.engine.engine import Engine
config = replace(CONFIG, device="cuda:1", execution="captured")
with Engine(config) as engine:
    run_beside(config, engine, range(8))
    assert len(steps_of(engine)._graphs) == 1
"""
    run_program(program)


def test_graphs_work_with_expandable_segments() -> None:
    """They once crashed together in PyTorch's allocator."""
    program = """
from tests.pipeline.test_captured_gpu import CONFIG, run_beside
from dataclasses import replace
from retinad.pipeline.engine.engine import Engine
config = replace(CONFIG, execution="captured")
with Engine(config) as engine:
    run_beside(config, engine, range(8))
"""
    run_program(program, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")


def run_program(program: str, **environment: str) -> None:
    command, root = [sys.executable, "-c", program], Path(__file__).parents[3]
    run = subprocess.run(command, env=os.environ | environment, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
