"""Measures the path from a camera to a subscriber, without a model and a capture process. Run by `make bench`.

That leaves the queue, the hand-over to the worker, the message and the socket; `retinad bench` measures the whole path.
The subscriber runs in its own process. The first argument, if given, is the number of frames.
"""

import logging
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import structlog

from retinad.client import EndRecord, FeaturesRecord, Kind, Subscriber
from retinad.daemon.config.load import ServiceConfig, load_config
from retinad.daemon.exit_codes import ExitCode
from retinad.daemon.service.service import Dependencies, serve
from retinad.daemon.service.systemd import Notifier
from retinad.daemon.versions import find_versions
from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.engine.executor import StepOutput
from retinad.pipeline.engine.statistics import EngineStatistics, LoadTimes, ModelDescription
from retinad.pipeline.frame_queue import FrameQueue
from retinad.pipeline.frames import Features, Frame, FrameStamp, OutputTensor, TokenGroup, TokenOutput

SIZE = (640, 480)
FRAMES = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
FPS = 200


class CopyEngine:
    """Replaces the model: copies the frame, the least that a step does with pixels."""

    description = ModelDescription(
        name="copy",
        weights="none",
        mixers=(),
        device="cpu",
        dtype="uint8",
        attention="none",
        attention_reason=None,
        execution="none",
        parameters=0,
    )

    load_times = LoadTimes(0.0, 0.0)

    def __enter__(self) -> "CopyEngine":
        return self

    def __exit__(self, *exc_info: object) -> None:
        return

    def open_stream(self, *arguments: object) -> None:
        return

    def close_stream(self, camera: str) -> None:
        return

    def flush(self, camera: str) -> list[Features]:
        return []

    def statistics(self) -> EngineStatistics:
        return EngineStatistics()

    def step_outputs(self, frames: Sequence[Frame], while_device_busy: object = None) -> list[StepOutput]:
        return [StepOutput([self._features(frame) for frame in frames], last=True)]

    def _features(self, frame: Frame) -> Features:
        data = frame.pixels.copy().reshape(-1).view("<f2")
        tensor = OutputTensor(TokenOutput.of(0, TokenGroup.PATCH, data.shape, "float16"), data)
        stamp, unit = frame.stamp, ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
        return Features(stamp, 0, stamp.source_seq, True, frozenset(), SIZE, (1, 1), unit, (tensor,))


class MemoryCamera:
    """Yields frames from memory at a constant rate, or as fast as the queue takes them."""

    def __init__(
        self, config: CameraConfig, queue: FrameQueue, on_status: Callable[[CameraStatus], None], *, first_epoch: int
    ) -> None:
        self._queue = queue
        self._fps = config.fps
        self.status = CameraStatus(config.name, CameraState.RUNNING, stream_epoch=first_epoch)

    async def run(self) -> CameraStatus:
        rng = np.random.default_rng(0)
        images = [rng.integers(0, 256, (SIZE[1], SIZE[0], 3), np.uint8) for _ in range(8)]
        await anyio.sleep(1.0)  # until the subscriber has connected
        began_s = time.monotonic()
        for number in range(FRAMES):
            if self._fps:
                await anyio.sleep(max(0.0, began_s + number / self._fps - time.monotonic()))
            stamp = FrameStamp(self.status.camera, 0, number, time.time_ns(), time.monotonic_ns(), None, SIZE)
            await self._queue.put(Frame(stamp, images[number % len(images)]))
        self.status = replace(self.status, state=CameraState.ENDED)
        return self.status


def listen(endpoint: str, results: Connection) -> None:
    """Receive until `end`; report the number of records, their rate and the percentiles of their age."""
    ages_ms: list[float] = []
    arrivals: list[float] = []
    with Subscriber(endpoint, kinds=(Kind.FEATURES, Kind.END), timeout_s=60.0) as subscriber:
        results.send("ready")
        while not isinstance(record := subscriber.receive(), EndRecord):
            assert isinstance(record, FeaturesRecord)
            arrivals.append(time.monotonic())
            ages_ms.append((time.monotonic_ns() - record.capture_monotonic_ns) / 1e6)
    skipped = len(arrivals) // 10
    seconds = arrivals[-1] - arrivals[skipped]
    percentiles = np.percentile(ages_ms[skipped:], (50, 99))
    results.send((len(arrivals), (len(arrivals) - skipped - 1) / seconds, *map(float, percentiles)))


def measure(title: str, config: ServiceConfig, **dependencies: Any) -> None:
    """Run the service with one subscriber until its sources end, and print what the subscriber received."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    reader = multiprocessing.get_context("spawn").Process(
        target=listen, args=(config.publish.endpoints[0], theirs), daemon=True
    )
    reader.start()
    ours.recv()
    everything = Dependencies(
        load_config=lambda: config, configure=lambda config: None, versions=find_versions(), **dependencies
    )
    assert anyio.run(serve, config, everything, Notifier({})) is ExitCode.OK
    count, fps, p50_ms, p99_ms = ours.recv()
    reader.join()
    print(f"{title:58} {count:6} {fps:9.1f} {p50_ms:9.2f} {p99_ms:9.2f}", flush=True)


def configured(folder: Path, cameras: str) -> ServiceConfig:
    path = folder / "config.toml"
    path.write_text(
        f'[service]\nexit_when_done = true\n[publish]\nendpoints = ["ipc://{folder}/f.sock"]\n'
        f'[model]\npreset = "tiny"\ndevice = "cpu"\n{cameras}'
    )
    return load_config(path, {})


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {find_versions()}")
    print(f"{'640x480':58} {'frames':>6} {'frames/s':>9} {'p50 ms':>9} {'p99 ms':>9}   (capture to subscriber)")
    copy = {"make_engine": lambda config: CopyEngine(), "make_camera": MemoryCamera}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        memory = 'name = "memory"\nsource = "synthetic:"\nmode = "lossless"\n'
        measure("no model, from memory, as fast as possible", configured(folder, f"[[camera]]\n{memory}"), **copy)
        measure(f"no model, from memory, {FPS}/s", configured(folder, f"[[camera]]\n{memory}fps = {FPS}\n"), **copy)


if __name__ == "__main__":
    main()
