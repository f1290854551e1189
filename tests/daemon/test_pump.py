"""The loop between queues and worker: small steps, and every camera in its turn."""

import contextlib
import time
from collections.abc import Iterator, Sequence

import anyio
import numpy as np
import pytest

from retinad.daemon.pump import pump
from retinad.pipeline.config import CaptureMode
from retinad.pipeline.delivery import Delivery
from retinad.pipeline.frame_queue import FrameQueue, FrameQueues
from retinad.pipeline.frames import Frame, FrameFailure, FrameStamp
from retinad.pipeline.worker import Worker

pytestmark = pytest.mark.anyio
SLOW = ("b", "c", "d")


class NoSink:
    """Gets nothing: the engine below gives no features."""

    def publish_features(self, *arguments: object, **named: object) -> None:
        raise AssertionError("there are no features")


class CountingEngine:
    """Gives no features of any frame, and takes 2 ms for that."""

    def __init__(self) -> None:
        self.steps: list[list[str]] = []

    def step(self, frames: Sequence[Frame]) -> list[FrameFailure]:
        time.sleep(0.002)
        self.steps.append([frame.stamp.camera for frame in frames])
        return [FrameFailure(frame.stamp, "counted") for frame in frames]


async def capture(camera: str, queue: FrameQueue, frames: int, interval_s: float) -> None:
    for number in range(frames):
        stamp = FrameStamp(camera, 0, number, 0, 0, None, (1, 1))
        await queue.put(Frame(stamp, np.zeros((1, 1, 3), np.uint8)))
        await anyio.sleep(interval_s)


@pytest.mark.parametrize("max_batch", [1, 2, 8])
async def test_a_fast_camera_neither_starves_the_others_nor_enlarges_a_step(max_batch: int) -> None:
    engine = CountingEngine()

    @contextlib.contextmanager
    def make() -> Iterator[CountingEngine]:
        yield engine

    queues = FrameQueues()
    opened = {camera: queues.open(camera, CaptureMode.LIVE, 2) for camera in ("fast", *SLOW)}
    worker = Worker(make)
    async with worker, anyio.create_task_group() as tasks:
        tasks.start_soon(pump, queues, worker, Delivery(queues, NoSink()), max_batch)
        tasks.start_soon(capture, "fast", opened["fast"], 1_000_000, 0.0005)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as captures:
                for camera in SLOW:
                    captures.start_soon(capture, camera, opened[camera], 6, 0.05)
            for camera in SLOW:
                await opened[camera].settled()
        tasks.cancel_scope.cancel()
    assert max(len(step) for step in engine.steps) <= max_batch
    assert all(len(set(step)) == len(step) for step in engine.steps), "one frame of a camera in a step"
    assert opened["fast"].counters.dropped > 0, "it is faster than the steps"
    assert [opened[camera].counters.dropped for camera in SLOW] == [0, 0, 0]
