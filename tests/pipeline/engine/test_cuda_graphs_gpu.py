"""On a GPU, steps stay right after captures that fail, are cut short or find tables evicted, and on other devices."""

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from retinad.pipeline.config import ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine import cuda_graphs
from retinad.pipeline.engine.cuda_graphs import CudaGraphRunner
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.host_copy import DeviceBuffer
from retinad.pipeline.engine.outputs import OutputHeads
from retinad.pipeline.frames import Size
from retinad.pipeline.model.network import LayerOutput

from .engine_rig import frame, good
from .gpu_rig import CONFIG, ERROR, NETWORKS, error

pytestmark = pytest.mark.gpu

STREAM = StreamConfig(1, 3, history_frames=4)
SIZES: tuple[Size, ...] = ((112, 84), (112, 56), (112, 112))


def graphs_of(engine: Engine) -> CudaGraphRunner:
    fused = engine.model_runner.graphs
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


@pytest.mark.parametrize("network", ["hybrid", "dinov2"])
def test_a_capture_that_runs_out_of_memory_midway_costs_no_frame_and_may_succeed_later(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capture's scratch memory must not be reused once its only graph is gone, because PyTorch refuses that."""
    config = replace(CONFIG, network=NETWORKS[network], execution="captured")
    monkeypatch.setattr(cuda_graphs, "RETRY_RUNS", 3)
    gather, failures = OutputHeads.gather, 0

    def fail(heads: OutputHeads, layers: Iterable[LayerOutput], *rest: Any) -> tuple[DeviceBuffer, ...]:
        nonlocal failures
        if torch.cuda.is_current_stream_capturing() and failures < 2:
            failures += 1
            next(iter(layers))
            raise torch.OutOfMemoryError("CUDA out of memory: injected")
        return gather(heads, layers, *rest)

    monkeypatch.setattr(OutputHeads, "gather", fail)
    stream = torch.cuda.current_stream()
    with Engine(config) as engine:
        run_beside(config, engine, range(16))
        assert failures == 2
        assert len(graphs_of(engine).graphs) == 1
    assert torch.cuda.current_stream() == stream


@pytest.mark.parametrize("network", ["hybrid", "dinov2"])
def test_tables_that_were_evicted_before_the_capture_are_made_before_it(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinad.pipeline.model.aggregator.CACHED_GRIDS", 1)
    monkeypatch.setattr("retinad.pipeline.model.dinov2.CACHED_GRIDS", 1)
    config = replace(CONFIG, network=NETWORKS[network], execution="captured")
    with Engine(config) as engine:
        run_beside(config, engine, range(8), SIZES)
        assert len(graphs_of(engine).graphs) == len(SIZES)


def test_more_kinds_of_steps_than_graphs_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", 2)
    monkeypatch.setattr(cuda_graphs, "EARNED_RUNS", 3)
    config = replace(CONFIG, execution="captured")
    with Engine(config) as engine:
        run_beside(config, engine, range(20), SIZES)
        assert len(graphs_of(engine).graphs) == 2


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_second_device_has_the_results_of_the_first() -> None:
    """In a process of its own: the engine makes its device the thread's current one."""
    program = """
from dataclasses import replace
from tests.pipeline.engine.gpu_rig import CONFIG
from tests.pipeline.engine.test_cuda_graphs_gpu import graphs_of, run_beside
from retinad.pipeline.engine.engine import Engine
config = replace(CONFIG, device="cuda:1", execution="captured")
with Engine(config) as engine:
    run_beside(config, engine, range(8))
    assert len(graphs_of(engine).graphs) == 1
"""
    run_program(program)


def test_graphs_work_with_expandable_segments() -> None:
    """They once crashed together in PyTorch's allocator."""
    program = """
from tests.pipeline.engine.gpu_rig import CONFIG
from tests.pipeline.engine.test_cuda_graphs_gpu import run_beside
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
