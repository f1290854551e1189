"""Cameras that come and go: published counters and numbers stay true, whatever the model is doing."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import cast

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from retinad.daemon.service import camera_run
from retinad.daemon.service.camera_run import CameraServices
from retinad.daemon.service.cameras import Cameras
from retinad.daemon.service.snapshots import StreamSnapshots
from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.config import CameraConfig, ModelConfig, NetworkConfig, OutputConfig, StreamConfig
from retinad.pipeline.delivery import Delivery
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.executor import StepOutput
from retinad.pipeline.frame_queue import FrameCounters, FrameQueue, FrameQueues
from retinad.pipeline.frames import Features, Frame, FrameStamp
from retinad.pipeline.pump import pump
from retinad.pipeline.worker import Worker

from ...deadlines import scaled

pytestmark = pytest.mark.anyio


class StuckEngine:
    """An engine whose steps last until `go_on` is set."""

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
    """A camera that sends one frame and then nothing."""

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
    """Records what was published: epoch and number of each record, and the counters at each end."""

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


def as_engine(worker: Worker[StuckEngine]) -> Worker[Engine]:
    """The worker, as one whose engine is real: the cameras use no more of it than the stub has."""
    return cast("Worker[Engine]", worker)


def services_of(worker: Worker[StuckEngine], delivery: Delivery) -> CameraServices:
    """What the cameras use, without snapshots."""
    return CameraServices(as_engine(worker), delivery, StreamSnapshots(None, as_engine(worker)))


@asynccontextmanager
async def playing(engine: StuckEngine, news: News) -> AsyncIterator[Cameras]:
    """Cameras that have not started yet, whose frames go through the engine to the news."""
    queues = FrameQueues()
    async with Worker(lambda: nullcontext(engine)) as worker, anyio.create_task_group() as tasks:
        delivery = Delivery(queues, news)
        cameras = Cameras(tasks, queues, services_of(worker, delivery), news, OneFrame)
        tasks.start_soon(pump, queues, as_engine(worker), delivery, 8)
        yield cameras
        tasks.cancel_scope.cancel()


async def test_a_step_that_outlasts_its_camera_counts_once_even_if_the_camera_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(camera_run, "DRAIN_S", 0.1)
    monkeypatch.setattr(camera_run, "CLOSE_S", 0.1)
    engine, news, config = StuckEngine(), News(), CameraConfig("a", "synthetic:")
    async with playing(engine, news) as cameras:
        await cameras.apply([config])
        await anyio.to_thread.run_sync(engine.stepping.wait, 20)
        await cameras.apply([])
        assert news.ends == [(1, 0, 0, 1)]
        await cameras.apply([config])
        engine.go_on.set()
        with anyio.fail_after(scaled(20)):
            while not news.records:  # noqa: ASYNC110  # what is watched has no event
                await anyio.sleep(0.005)
        await cameras.stop()
    assert news.records == [(1, 0)], "what ended with the old connection is not published after its `end`"
    assert news.ends[1:] == [(2, 1, 0, 1)]
    assert news.next_seqs == [0, 1]


async def test_totals_include_removed_cameras() -> None:
    """Otherwise a reload that removes a camera would report a negative frame rate."""
    engine, news = StuckEngine(), News()
    a, b = CameraConfig("a", "synthetic:"), CameraConfig("b", "synthetic:")
    engine.go_on.set()
    async with playing(engine, news) as cameras:
        totals = []
        for configs, records in (([a, b], 2), ([a], 2), ([b, a], 3)):
            await cameras.apply(configs)
            with anyio.fail_after(scaled(20)):
                while len(news.records) < records:  # noqa: ASYNC110  # what is watched has no event
                    await anyio.sleep(0.005)
            totals.append(cameras.totals.published)
        await cameras.stop()
    assert totals == [2, 2, 3]


async def test_a_removed_camera_can_come_back_and_a_finished_one_does_not_restart() -> None:
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
    """Otherwise a program that lists cameras from the first `hello` would miss those that start later."""
    news, queues = News(), FrameQueues()
    configs = [CameraConfig(name, "synthetic:") for name in "abc"]
    async with Worker(lambda: nullcontext(StuckEngine())) as worker, anyio.create_task_group() as tasks:
        services = services_of(worker, Delivery(queues, news))
        cameras = Cameras(tasks, queues, services, news, OneFrame)
        tasks.start_soon(cameras.apply, configs)
        await anyio.lowlevel.checkpoint()  # the first has started, the others wait for their turn
        known = [(report.config.name, report.status.state) for report in cameras.reports]
        running = sum(cameras.report(config.name) is not None for config in configs)
        await cameras.stop()
        tasks.cancel_scope.cancel()
    assert running < len(configs)
    assert [name for name, _ in known] == ["a", "b", "c"]
    assert known[-1][1] is CameraState.CONNECTING


class Lost(OneFrame):
    """A camera whose source is lost after one frame, and stays away."""

    def __init__(
        self, config: CameraConfig, queue: FrameQueue, on_status: Callable[[CameraStatus], None], *, first_epoch: int
    ) -> None:
        super().__init__(config, queue, on_status, first_epoch=first_epoch)
        self._on_status = on_status

    async def run(self) -> CameraStatus:
        stamp = FrameStamp(self.status.camera, 0, 0, 0, 0, None, (64, 48))
        await self._queue.put(Frame(stamp, np.zeros((48, 64, 3), np.uint8)))
        self.status = CameraStatus(self.status.camera, CameraState.BACKOFF, stream_epoch=0)
        self._on_status(self.status)
        await anyio.sleep_forever()
        return self.status


async def test_frames_of_a_first_block_do_not_wait_for_a_source_that_is_lost() -> None:
    """Known fault: they were published when the source came back, a minute later, as if they were new."""
    network = NetworkConfig(channels=32, heads=2, depth=2, patch_embed="conv")
    model = ModelConfig(name="test", network=network, image_width=56, output=OutputConfig(layers=(1,)))
    news, queues = News(), FrameQueues()
    async with Worker(lambda: Engine(model)) as worker, anyio.create_task_group() as tasks:
        delivery = Delivery(queues, news)
        services = CameraServices(worker, delivery, StreamSnapshots(None, worker))
        cameras = Cameras(tasks, queues, services, news, Lost)
        tasks.start_soon(pump, queues, worker, delivery, 8)
        await cameras.apply([CameraConfig("a", "synthetic:", stream=StreamConfig(scale_frames=4))])
        with anyio.fail_after(scaled(20)):
            while not news.records:  # noqa: ASYNC110  # what is watched has no event
                await anyio.sleep(0.005)
        await cameras.stop()
        tasks.cancel_scope.cancel()
    assert (news.records, news.ends) == ([(0, 0)], [(1, 1, 0, 0)])
