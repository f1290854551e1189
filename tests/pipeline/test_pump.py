"""The loop between queues and worker: small steps, cameras served in turn, nothing lost or out of order."""

import contextlib
import random
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence

import anyio
import numpy as np
import pytest

from retinad.pipeline.config import CaptureMode
from retinad.pipeline.delivery import Delivery
from retinad.pipeline.engine.executor import StepOutput
from retinad.pipeline.frame_queue import FrameQueue, FrameQueues
from retinad.pipeline.frames import Features, Frame, FrameFailure, FrameStamp, Outcome
from retinad.pipeline.pump import flush, pump
from retinad.pipeline.worker import Worker

pytestmark = pytest.mark.anyio
SLOW = ("b", "c", "d")


class NoSink:
    """Refuses features: the engine below makes none."""

    def publish_features(self, *arguments: object, **named: object) -> None:
        raise AssertionError("no features expected")


class SeqSink:
    """Keeps the numbers of the published frames, by camera."""

    def __init__(self) -> None:
        self.seqs: dict[str, list[int]] = {}

    def publish_features(self, features: Features, **named: object) -> None:
        self.seqs.setdefault(features.stamp.camera, []).append(features.stamp.source_seq)


def record(stamp: FrameStamp) -> Features:
    return Features(stamp, 0, 0, True, frozenset(), (1, 1), (1, 1), ((1, 0, 0), (0, 1, 0)), ())


class NoPrefetch:
    """Its device is never busy, so it is never asked to prefetch."""

    def prepare(self, frames: Sequence[Frame]) -> None:
        raise AssertionError("prefetched")


class CountingEngine(NoPrefetch):
    """Fails every frame, and takes 2 ms for it."""

    def __init__(self) -> None:
        self.steps: list[list[str]] = []

    def step_outputs(self, frames: Sequence[Frame], while_device_busy: object = None) -> Iterable[StepOutput]:
        return [StepOutput(list(self.step(frames)), last=True)]

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


class BlockEngine(NoPrefetch):
    """Collects each camera's frames until there are three, like a stream's first block.

    Each step has two results; the second one need not be marked as the last.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[FrameStamp]] = {}

    def step_outputs(self, frames: Sequence[Frame], while_device_busy: object = None) -> Iterator[StepOutput]:
        given = list(self.step(frames))
        cut = random.randint(0, len(given))
        yield StepOutput(list(given[:cut]))
        yield StepOutput(list(given[cut:]), last=random.random() < 0.5)

    def step(self, frames: Sequence[Frame]) -> list[Features]:
        time.sleep(random.random() / 1000)
        given: list[Features] = []
        for frame in frames:
            waiting = self._waiting.setdefault(frame.stamp.camera, [])
            waiting.append(frame.stamp)
            if len(waiting) == 3:
                given += self.flush(frame.stamp.camera)
        return given

    def flush(self, camera: str) -> list[Features]:
        return [record(stamp) for stamp in self._waiting.pop(camera, [])]


@pytest.mark.parametrize("seed", range(4))
async def test_flushed_records_of_a_drained_camera_follow_those_of_the_running_step(seed: int) -> None:
    """A step's records are published once the next step has begun; those of a flush must not overtake them."""
    random.seed(seed)
    engine, sink = BlockEngine(), SeqSink()

    @contextlib.contextmanager
    def make() -> Iterator[BlockEngine]:
        yield engine

    async def live(camera: str, frames: int) -> None:
        queue = queues.open(camera, CaptureMode.LOSSLESS, 2, frames_per_step=random.randint(1, 3))
        await capture(camera, queue, frames, random.random() / 1000)
        await queue.emptied()
        await flush(camera, worker, delivery)
        with anyio.fail_after(5):
            await queue.settled()
        assert queue.counters.published == frames
        queues.close(camera)

    queues = FrameQueues()
    delivery, worker = Delivery(queues, sink), Worker(make)
    async with worker, anyio.create_task_group() as tasks:
        tasks.start_soon(pump, queues, worker, delivery, 4)
        async with anyio.create_task_group() as cameras:
            for number in range(6):
                cameras.start_soon(live, f"c{number}", 10 * number + number % 3 + 1)
                await anyio.sleep(random.random() / 100)
        tasks.cancel_scope.cancel()
    assert sink.seqs == {f"c{number}": list(range(10 * number + number % 3 + 1)) for number in range(6)}


async def test_a_removed_or_returned_camera_gets_no_records_of_a_step_that_outlasted_it() -> None:
    """The camera's frames were counted as failed at its removal; a camera that returned has new frames."""
    entered, leave = threading.Event(), threading.Event()
    failed: list[int] = []

    class Slow(CountingEngine):
        def step(self, frames: Sequence[Frame]) -> list[FrameFailure]:
            entered.set()
            leave.wait(5)
            return super().step(frames)

    @contextlib.contextmanager
    def make() -> Iterator[CountingEngine]:
        yield Slow()

    queues = FrameQueues()
    delivery, worker = (
        Delivery(queues, NoSink(), lambda failure: failed.append(failure.stamp.stream_epoch)),
        Worker(make),
    )
    async with worker, anyio.create_task_group() as tasks:
        tasks.start_soon(pump, queues, worker, delivery, 1)
        queue = queues.open("a", CaptureMode.LIVE, 2)
        await capture("a", queue, 1, 0)
        await anyio.to_thread.run_sync(entered.wait)
        queue.abandon()
        queues.close("a")
        again = queues.open("a", CaptureMode.LIVE, 2, queue.counters, first_epoch=1)
        stamp = FrameStamp("a", 1, 0, 0, 0, None, (1, 1))
        await again.put(Frame(stamp, np.zeros((1, 1, 3), np.uint8)))
        leave.set()
        with anyio.fail_after(5):
            await again.settled()
        tasks.cancel_scope.cancel()
    assert failed == [1]
    assert (again.counters.captured, again.counters.failed) == (2, 2)


async def test_while_a_step_runs_the_next_frames_are_preprocessed_in_the_same_thread() -> None:
    threads: set[int] = set()

    class Preparing(CountingEngine):
        def __init__(self) -> None:
            super().__init__()
            self.prepared: list[list[int]] = []
            self.taken: list[list[int]] = []

        def step_outputs(self, frames: Sequence[Frame], while_device_busy: object = None) -> Iterable[StepOutput]:
            threads.add(threading.get_ident())
            self.taken.append([frame.stamp.source_seq for frame in frames])
            assert callable(while_device_busy)
            while_device_busy(lambda: True)
            return super().step_outputs(frames)

        def prepare(self, frames: Sequence[Frame]) -> None:
            threads.add(threading.get_ident())
            self.prepared.append([frame.stamp.source_seq for frame in frames])

    engine = Preparing()

    @contextlib.contextmanager
    def make() -> Iterator[CountingEngine]:
        yield engine

    queues = FrameQueues()
    queue = queues.open("a", CaptureMode.LOSSLESS, 4, frames_per_step=2)
    await capture("a", queue, 4, 0)
    worker = Worker(make)
    async with worker, anyio.create_task_group() as tasks:
        tasks.start_soon(pump, queues, worker, Delivery(queues, NoSink()), 2)
        with anyio.fail_after(5):
            await queue.settled()
        tasks.cancel_scope.cancel()
    assert engine.taken == [[0, 1], [2, 3]]
    assert engine.prepared == [[2, 3]]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_frame_that_was_peeked_at_and_then_dropped_is_released_at_once() -> None:
    """The frame's pixels occupy a slot of the capture process, which has few slots."""
    peek, peeked, leave = threading.Event(), threading.Event(), threading.Event()
    kept: list[weakref.ref[np.ndarray]] = []

    class Peeking(CountingEngine):
        def step_outputs(self, frames: Sequence[Frame], while_device_busy: object = None) -> Iterable[StepOutput]:
            assert callable(while_device_busy)
            peek.wait(5)
            while_device_busy(lambda: True)
            peeked.set()
            leave.wait(5)
            return super().step_outputs(frames)

        def prepare(self, frames: Sequence[Frame]) -> None:
            assert [frame.stamp.source_seq for frame in frames] == [1]

    @contextlib.contextmanager
    def make() -> Iterator[CountingEngine]:
        yield Peeking()

    async def put(number: int) -> None:
        pixels = np.zeros((1, 1, 3), np.uint8)
        kept.append(weakref.ref(pixels))
        await queue.put(Frame(FrameStamp("a", 0, number, 0, 0, None, (1, 1)), pixels))

    queues = FrameQueues()
    queue = queues.open("a", CaptureMode.LIVE, 1)
    await put(0)
    worker = Worker(make)
    async with worker, anyio.create_task_group() as tasks:
        tasks.start_soon(pump, queues, worker, Delivery(queues, NoSink()), 1)
        with anyio.fail_after(5):
            await queue.emptied()
            await put(1)
            peek.set()
            await anyio.to_thread.run_sync(peeked.wait)
        await put(2)
        assert [pixels() is None for pixels in kept] == [False, True, False]
        leave.set()
        with anyio.fail_after(5):
            await queue.settled()
        tasks.cancel_scope.cancel()
    assert [pixels() is None for pixels in kept] == [True, True, True]
    assert (queue.counters.dropped, queue.counters.failed) == (1, 2)


async def test_records_of_a_forward_pass_leave_before_the_next_pass_runs_and_failures_leave_with_records() -> None:
    order: list[str] = []

    class Ordered(SeqSink):
        def publish_features(self, features: Features, **named: object) -> None:
            order.append(f"published {features.stamp.source_seq}")

    def tell(failure: FrameFailure) -> None:
        order.append(f"failed {failure.stamp.source_seq}")

    class PassByPass(CountingEngine):
        def step_outputs(self, frames: Sequence[Frame], while_device_busy: object = None) -> Iterator[StepOutput]:
            for frame in frames:
                number = frame.stamp.source_seq
                order.append(f"ran {number}")
                outcome: Outcome = FrameFailure(frame.stamp, "") if number == 1 else record(frame.stamp)
                yield StepOutput([outcome], last=number == 3)

    @contextlib.contextmanager
    def make() -> Iterator[CountingEngine]:
        yield PassByPass()

    queues = FrameQueues()
    queue = queues.open("a", CaptureMode.LOSSLESS, 4, frames_per_step=4)
    await capture("a", queue, 4, 0)
    worker = Worker(make)
    async with worker, anyio.create_task_group() as tasks:
        tasks.start_soon(pump, queues, worker, Delivery(queues, Ordered(), tell), 4)
        with anyio.fail_after(5):
            await queue.settled()
        tasks.cancel_scope.cancel()
    assert order == ["ran 0", "published 0", "ran 1", "ran 2", "failed 1", "published 2", "ran 3", "published 3"]
