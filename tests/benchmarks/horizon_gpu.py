"""HorizonStream at its full size on a GPU: errors of its outputs, and the duration of a step; weights are random.

`python -m tests.benchmarks.horizon_gpu` runs a stream of 518x378 images in float32, bfloat16 and float16. It prints the
largest error of each output against float32; the duration of a step, from pixels in host memory to poses and depths in
host memory, for 1 and 16 streams with full windows; the memory of a stream; and the kernels that take longest.
"""

import time
from dataclasses import replace
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

from retinad.pipeline.config import AttentionName, DType, ModelConfig, ResizeMode
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Features, Frame, OutputKind
from retinad.pipeline.model.presets import HORIZON_STREAM

from .heads_gpu import errors, picture
from .step_gpu import quick_weights

OUTPUTS = (OutputKind.POSE, OutputKind.DEPTH)
NAMES = ("pose/encoding", "pose/world_from_camera", "depth", "depth_confidence")
STREAM = HORIZON_STREAM.stream
FILLED, STEPS = 2 * STREAM.window, 40
PICTURES = [picture(number) for number in range(8)]


def config_of(dtype: DType) -> ModelConfig:
    attention: AttentionName = "dense" if dtype == "float32" else "auto"
    return ModelConfig(
        name=HORIZON_STREAM.name,
        network=HORIZON_STREAM.network,
        image_width=HORIZON_STREAM.image_width,
        device="cuda:0",
        dtype=dtype,
        attention=attention,
        outputs=OUTPUTS,
        max_batch=16,
    )


def step(engine: Engine, streams: int, number: int) -> None:
    frame = PICTURES[number % len(PICTURES)]
    stamps = [replace(frame.stamp, camera=f"camera{index}", source_seq=number) for index in range(streams)]
    frames = [Frame(stamp, frame.pixels) for stamp in stamps]
    outcomes = engine.step(frames)
    assert all(isinstance(outcome, Features) for outcome in outcomes), outcomes


def durations(streams: int) -> None:
    with Engine(config_of("bfloat16")) as engine:
        for index in range(streams):
            engine.open_stream(f"camera{index}", STREAM, ResizeMode.CROP)
        for number in range(FILLED):
            step(engine, streams, number)
        torch.cuda.synchronize()
        begun_s = time.monotonic()
        for number in range(STEPS):
            step(engine, streams, FILLED + number)
        took_ms = (time.monotonic() - begun_s) * 1000 / STEPS
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            step(engine, streams, FILLED + STEPS)
        rows = sorted(recorded.key_averages(), key=lambda row: row.self_device_time_total, reverse=True)
        busy_ms = sum(row.self_device_time_total for row in rows) / 1000
        memory = engine.statistics().streams[0].nbytes / 1e9
        peak = torch.cuda.max_memory_allocated() / 1e9
        print(
            f"{streams} streams: {took_ms:.2f} ms a step, {took_ms / streams:.2f} ms a frame; "
            f"the GPU works {busy_ms:.2f} ms; a stream {memory:.3f} GB, peak {peak:.1f} GB",
            flush=True,
        )
        for row in rows[:12]:
            print(f"  {row.self_device_time_total / 1000:7.2f} ms {row.count:5} x {row.key[:90]}", flush=True)


def main() -> None:
    mock.patch("retinad.pipeline.model.checkpoint.random_tensors", quick_weights).start()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    errors({dtype: config_of(dtype) for dtype in ("float32", "bfloat16", "float16")}, STREAM, NAMES)
    for streams in (1, 16):
        durations(streams)


if __name__ == "__main__":
    main()
