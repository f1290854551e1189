"""The snapshot of the service's state holds what its parts say at that moment."""

from contextlib import nullcontext
from pathlib import Path
from typing import cast

import anyio
import pytest

from retinad.client.wire import HelloHeader, ModelHeader
from retinad.daemon.service.loop_lag import LoopLag
from retinad.daemon.service.monitor import StateMonitor
from retinad.pipeline.config import PublishConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.statistics import EngineStatistics
from retinad.pipeline.frame_queue import FrameCounters
from retinad.pipeline.publish.publisher import Publisher
from retinad.pipeline.worker import Worker

from ...deadlines import scaled


class CountingEngine:
    """An engine whose count of forward passes grows with each reading."""

    def __init__(self) -> None:
        self._readings = 0

    def statistics(self) -> EngineStatistics:
        self._readings += 1
        return EngineStatistics(forwards=self._readings)


def make_monitor() -> StateMonitor:
    return StateMonitor((), {"retinad": "1"}, LoopLag(0.05))


def test_there_is_a_state_before_anything_is_open() -> None:
    state = make_monitor().snapshot()
    assert (state.model, state.endpoints, state.cameras, state.totals) == (None, (), (), FrameCounters())
    assert state.process.publisher.sent_messages == 0


def test_publisher_and_reloads_are_as_of_now(tmp_path: Path) -> None:
    monitor = make_monitor()
    config = PublishConfig(endpoints=(f"ipc://{tmp_path}/x.sock",))
    model = ModelHeader(name="tiny", weights="random:0")
    with Publisher(config, model=model, largest_message_bytes=1, describe=HelloHeader) as publisher:
        monitor.watch(publisher)
        before = monitor.snapshot()
        publisher.publish_hello()
        monitor.count_reload(applied=True)
        monitor.count_reload(applied=False)
        after = monitor.snapshot()
    assert before.endpoints == config.endpoints
    assert (before.process.publisher.sent_messages, after.process.publisher.sent_messages) == (0, 1)
    assert (before.process.reloads, after.process.reloads, after.process.reload_failures) == (0, 2, 1)
    assert after.process.uptime_s >= before.process.uptime_s >= 0


@pytest.mark.anyio
async def test_engine_statistics_are_those_of_the_last_reading() -> None:
    monitor = make_monitor()
    async with Worker(lambda: nullcontext(CountingEngine())) as worker, anyio.create_task_group() as tasks:
        tasks.start_soon(monitor.follow_engine, cast("Worker[Engine]", worker), 0.01)
        with anyio.fail_after(scaled(5)):
            while monitor.snapshot().engine.forwards < 3:  # noqa: ASYNC110  # the reading has no event
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
