"""The cameras' lives: what is announced of them stays true, whatever the model is doing meanwhile."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from retinad.daemon.service import cameras as cameras_module
from retinad.daemon.service.cameras import Cameras
from retinad.daemon.service.snapshots import KeptStates
from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.delivery import Delivery
from retinad.pipeline.engine.executor import StepOutput
from retinad.pipeline.frame_queue import FrameCounters, FrameQueue, FrameQueues
from retinad.pipeline.frames import Features, Frame, FrameStamp
from retinad.pipeline.pump import pump
from retinad.pipeline.worker import Worker

pytestmark = pytest.mark.anyio


class StuckEngine:
    """A step lasts until it is let go."""

    def __init__(self) -> None:
        self.stepping, self.go_on = threading.Event(), threading.Event()

    def open_stream(self, *arguments: object) -> None:
        return

    def close_stream(self, camera: str) -> None:
        return

    def flush(self, camera: str) -> list[Features]:
        return []

    def step_outputs(self, frames: Sequence[Frame], while_device_busy: object = None) -> Iterator[StepOutput]:
        self.stepping.set()
        assert self.go_on.wait(20)
        unit = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
        given = (Features(frame.stamp, 0, 0, True, frozenset(), (1, 1), (1, 1), unit, ()) for frame in frames)
        yield StepOutput(list(given), last=True)


class OneFrame:
    """A camera that gives one frame and then nothing."""

    def __init__(
        self, config: CameraConfig, queue: FrameQueue, on_status: Callable[[CameraStatus], None], *, first_epoch: int
    ) -> None:
        self._queue = queue
        self.status = CameraStatus(config.name, CameraState.RUNNING, stream_epoch=first_epoch)

    async def run(self) -> CameraStatus:
        assert self.status.stream_epoch is not None
        stamp = FrameStamp(self.status.camera, self.status.stream_epoch, 0, 0, 0, None, (1, 1))
        await self._queue.put(Frame(stamp, np.zeros((1, 1, 3), np.uint8)))
        await anyio.sleep_forever()
        return self.status


class News:
    """What was published: records by epoch and number, and the counters at each end."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []
        self.ends: list[tuple[int, int, int, int]] = []
        self.next_seqs: list[int | None] = []

    def publish_features(self, features: Features, *, seq: int, **rest: int) -> None:
        self.records.append((features.stamp.stream_epoch, seq))

    def camera_changed(self, status: CameraStatus, counters: FrameCounters) -> None:
        return

    def camera_ended(self, status: CameraStatus, counters: FrameCounters, next_seq: int | None) -> None:
        self.ends.append((counters.captured, counters.published, counters.dropped, counters.failed))
        self.next_seqs.append(next_seq)


@asynccontextmanager
async def playing(engine: StuckEngine, news: News) -> AsyncIterator[Cameras]:
    """Cameras that are not started yet, whose frames go through the engine to the news."""
    queues = FrameQueues()
    async with Worker(lambda: nullcontext(engine)) as worker, anyio.create_task_group() as tasks:
        delivery = Delivery(queues, news)
        states = KeptStates(None, worker)  # type: ignore[arg-type]
        cameras = Cameras(tasks, queues, worker, delivery, news, OneFrame, states)  # type: ignore[arg-type]
        tasks.start_soon(pump, queues, worker, delivery, 8)
        yield cameras
        tasks.cancel_scope.cancel()


async def test_a_step_that_outlasts_its_camera_counts_once_though_the_camera_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cameras_module, "DRAIN_S", 0.1)
    monkeypatch.setattr(cameras_module, "CLOSE_S", 0.1)
    engine, news, config = StuckEngine(), News(), CameraConfig("a", "synthetic:")
    async with playing(engine, news) as cameras:
        await cameras.apply([config])
        await anyio.to_thread.run_sync(engine.stepping.wait, 20)
        await cameras.apply([])
        assert news.ends == [(1, 0, 0, 1)]
        await cameras.apply([config])
        engine.go_on.set()
        with anyio.fail_after(20):
            while not news.records:  # noqa: ASYNC110  # what is watched has no event
                await anyio.sleep(0.005)
        await cameras.stop()
    assert news.records == [(1, 0)], "what ended with the old connection is not published after its `end`"
    assert news.ends[1:] == [(2, 1, 0, 1)]
    assert news.next_seqs == [0, 1]


async def test_totals_keep_what_a_camera_had_that_is_gone() -> None:
    """A reload that takes a camera out gave a negative frame rate."""
    engine, news = StuckEngine(), News()
    a, b = CameraConfig("a", "synthetic:"), CameraConfig("b", "synthetic:")
    engine.go_on.set()
    async with playing(engine, news) as cameras:
        totals = []
        for configs, records in (([a, b], 2), ([a], 2), ([b, a], 3)):
            await cameras.apply(configs)
            with anyio.fail_after(20):
                while len(news.records) < records:  # noqa: ASYNC110  # what is watched has no event
                    await anyio.sleep(0.005)
            totals.append(sum(counters.published for counters in cameras.counters))
        await cameras.stop()
    assert totals == [2, 2, 3]


async def test_a_camera_that_was_taken_out_comes_back_and_one_that_is_over_does_not() -> None:
    engine, news, config = StuckEngine(), News(), CameraConfig("a", "synthetic:")
    engine.go_on.set()
    async with playing(engine, news) as cameras:
        await cameras.apply([config])
        await cameras.apply([])
        await cameras.apply([config])
        await cameras.stop()
        assert len(news.ends) == 2
        await cameras.apply([config])
        assert len(news.ends) == 2
        await cameras.all_finished()


async def test_all_configured_cameras_are_known_while_they_are_started_one_by_one() -> None:
    """A program that makes its list from the first `hello` missed those that had not been started yet."""
    news, queues = News(), FrameQueues()
    configs = [CameraConfig(name, "synthetic:") for name in "abc"]
    async with Worker(lambda: nullcontext(StuckEngine())) as worker, anyio.create_task_group() as tasks:
        states = KeptStates(None, worker)  # type: ignore[arg-type]
        cameras = Cameras(tasks, queues, worker, Delivery(queues, news), news, OneFrame, states)  # type: ignore[arg-type]
        tasks.start_soon(cameras.apply, configs)
        await anyio.lowlevel.checkpoint()  # the first is started, and the others wait for their turn
        known = [(report.config.name, report.status.state) for report in cameras.reports]
        running = sum(cameras.report(config.name) is not None for config in configs)
        await cameras.stop()
        tasks.cancel_scope.cancel()
    assert running < len(configs)
    assert [name for name, _ in known] == ["a", "b", "c"]
    assert known[-1][1] is CameraState.CONNECTING
