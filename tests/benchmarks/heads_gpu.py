"""Errors and duration of the camera and depth heads of the full-size network on a GPU; weights are random.

`python -m tests.benchmarks.heads_gpu` runs a stream of 518x378 images through the network in float32, bfloat16 and
float16, and with a float8 memory. It prints the largest error of each output against float32, and the duration of a
captured step with and without each head.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

from retinad.pipeline.config import DType, MemoryDType, ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Features, Frame, FrameStamp, OutputKind

from .step_gpu import SIZE, STREAM, quick_weights, replay_ms

FEATURES, POSE, DEPTH = OutputKind.FEATURES, OutputKind.POSE, OutputKind.DEPTH
NAMES = ("pose/encoding", "depth", "depth_confidence")
COMPARED, TIMED = 16, 60


def picture(number: int) -> Frame:
    """A smooth scene that moves, so that neighbouring frames are alike."""
    rows, columns = np.mgrid[: SIZE[1], : SIZE[0]]
    waves = [np.sin((rows * a + columns * b + 12 * number) / 40) for a, b in ((1, 0.3), (0.4, 1), (0.8, -0.6))]
    pixels = ((np.stack(waves, axis=2) + 1) * 127).astype(np.uint8)
    return Frame(FrameStamp("a", 0, number, 0, time.monotonic_ns(), None, SIZE), pixels)


def records(engine: Engine, count: int) -> list[Features]:
    found = []
    for number in range(count):
        outcomes = engine.step([picture(number)])
        assert all(isinstance(outcome, Features) for outcome in outcomes), outcomes
        found += [outcome for outcome in outcomes if isinstance(outcome, Features)]
    return found


def config_of(dtype: DType, outputs: Sequence[OutputKind], memory: MemoryDType = "auto") -> ModelConfig:
    config = ModelConfig(device="cuda:0", dtype=dtype, memory_dtype=memory, outputs=tuple(outputs))
    return replace(config, attention="dense", execution="plain") if dtype == "float32" else config


def errors(configs: Mapping[str, ModelConfig], stream: StreamConfig, names: Sequence[str]) -> None:
    """Print the largest error of each output against that of the first configuration."""
    found: dict[str, list[Features]] = {}
    for label, config in configs.items():
        with Engine(config) as engine:
            engine.open_stream("a", stream, ResizeMode.CROP)
            found[label] = records(engine, COMPARED)
    expected = found.pop(next(iter(configs)))
    for label, given in found.items():
        for name in names:
            pairs = [(array(one, name), array(other, name)) for one, other in zip(given, expected, strict=True)]
            worst = max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in pairs)
            norm = max(float(np.linalg.norm(one - other) / np.linalg.norm(other)) for one, other in pairs)
            print(f"{label}, {name}: of the largest magnitude {worst:.2e}, of the norm {norm:.2e}", flush=True)


def array(record: Features, name: str) -> npt.NDArray[np.float64]:
    (found,) = (tensor.data.astype(np.float64) for tensor in record.tensors if tensor.name == name)
    return found


def durations() -> None:
    for outputs in ((FEATURES,), (FEATURES, POSE), (FEATURES, DEPTH), (FEATURES, POSE, DEPTH)):
        with Engine(config_of("bfloat16", outputs)) as engine:
            engine.open_stream("a", STREAM, ResizeMode.CROP)
            records(engine, TIMED)
            runner = engine.model_runner.graphs
            assert runner is not None
            memory = engine.statistics().streams[0].nbytes / 1e9
            peak = torch.cuda.max_memory_allocated() / 1e9
            print(
                f"{' '.join(outputs)}: the graph alone {replay_ms(runner.graphs[-1]):.2f} ms; "
                f"a stream {memory:.3f} GB, peak {peak:.1f} GB",
                flush=True,
            )


def main() -> None:
    mock.patch("retinad.pipeline.model.checkpoint.random_tensors", quick_weights).start()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    durations()
    variants: dict[str, tuple[DType, MemoryDType]] = {
        "float32": ("float32", "auto"),
        "bfloat16": ("bfloat16", "auto"),
        "float16": ("float16", "auto"),
        "bfloat16, float8 memory": ("bfloat16", "float8_e4m3fn"),
    }
    configs = {label: config_of(dtype, (POSE, DEPTH), memory) for label, (dtype, memory) in variants.items()}
    errors(configs, replace(STREAM, window=8), NAMES)


if __name__ == "__main__":
    main()
