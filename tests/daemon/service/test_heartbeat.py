"""The watchdog is fed while the worker idles or gets its steps done, and not while a step hangs."""

from dataclasses import dataclass, field

import anyio
import pytest
from structlog.testing import capture_logs

from retinad.daemon.service.cameras import PACE_S, CameraReport
from retinad.daemon.service.heartbeat import FrameRate, beat, report, show_states
from retinad.daemon.service.loop_lag import LoopLag
from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.frame_queue import FrameCounters
from retinad.pipeline.publish.publisher import PublisherStatistics

pytestmark = pytest.mark.anyio

INTERVAL_S = 0.1


class Publisher:
    def __init__(self) -> None:
        self.polls = 0

    def statistics(self) -> PublisherStatistics:
        return PublisherStatistics()

    def take_slow_peers(self) -> tuple[str, ...]:
        return ("127.0.0.1:5", "process 7")

    def poll(self) -> None:
        self.polls += 1


@dataclass
class Worker:
    busy_s: float


@dataclass
class Notifier:
    watchdog_interval_s: float | None
    fed_at: list[float] = field(default_factory=list)

    def status(self, text: str) -> None:
        return

    def watchdog(self) -> None:
        self.fed_at.append(anyio.current_time())


async def beat_for(seconds: float, worker: Worker, notifier: Notifier) -> Publisher:
    publisher = Publisher()
    with anyio.move_on_after(seconds):
        await beat(publisher, worker, notifier, LoopLag(0.01))  # type: ignore[arg-type]
    return publisher


@pytest.mark.parametrize("busy_s", [0.0, 0.9 * INTERVAL_S], ids=["idle", "in a step"])
async def test_a_worker_that_makes_progress_feeds_it_within_every_interval(busy_s: float) -> None:
    notifier = Notifier(INTERVAL_S)
    await beat_for(10 * INTERVAL_S, Worker(busy_s), notifier)
    assert 5 <= len(notifier.fed_at) <= 21


async def test_a_step_that_hangs_stops_the_feeding_until_it_is_over_and_nothing_else() -> None:
    worker, notifier = Worker(INTERVAL_S), Notifier(INTERVAL_S)
    publisher = await beat_for(3 * INTERVAL_S, worker, notifier)
    assert notifier.fed_at == []
    assert publisher.polls > 3
    worker.busy_s = 0.0
    await beat_for(INTERVAL_S, worker, notifier)
    assert notifier.fed_at


async def test_without_a_watchdog_nothing_is_fed() -> None:
    notifier = Notifier(None)
    await beat_for(0.1, Worker(0.0), notifier)
    assert notifier.fed_at == []


@dataclass
class Cameras:
    reports: list[CameraReport]
    ended: set[str]
    gone: FrameCounters = field(default_factory=FrameCounters)

    @property
    def counters(self) -> list[FrameCounters]:
        return [self.gone, *(one.counters for one in self.reports)]

    def report(self, camera: str) -> CameraReport | None:
        return None if camera in self.ended else next(one for one in self.reports if one.config.name == camera)


class Announcer:
    def __init__(self) -> None:
        self.told: list[tuple[float, str]] = []

    def camera_changed(self, status: CameraStatus, counters: FrameCounters) -> None:
        self.told.append((anyio.current_time(), status.camera))


async def test_many_cameras_are_told_of_at_a_pace_and_none_that_is_gone() -> None:
    """All at once would be more than a subscriber's queue may hold."""
    names = [f"cam{number}" for number in range(32)]
    reports = [
        CameraReport(CameraConfig(n, "synthetic:"), CameraStatus(n, CameraState.RUNNING), FrameCounters(), 0)
        for n in names
    ]
    announcer = Announcer()
    with capture_logs() as log, anyio.move_on_after(0.3):
        await report(
            Cameras(reports, {"cam7"}, FrameCounters(published=7, dropped=3)),  # type: ignore[arg-type]
            announcer,  # type: ignore[arg-type]
            Publisher(),  # type: ignore[arg-type]
            Notifier(None),  # type: ignore[arg-type]
            LoopLag(0.01),
            0.01,
        )
    totals = next(line for line in log if line["event"] == "report")
    assert (totals["cameras"], totals["published_total"], totals["dropped_total"]) == ("32 running", 7, 3)
    (line,) = (line for line in log if "do not keep up" in line["event"])
    assert line["peers"] == ["127.0.0.1:5", "process 7"]
    first = announcer.told[: len(names) - 1]
    assert [name for _, name in first] == [name for name in names if name != "cam7"]
    assert first[-1][0] - first[0][0] >= 30 * PACE_S


async def test_the_rate_is_that_since_the_last_reading() -> None:
    rate = FrameRate()
    rate.update(100)
    await anyio.sleep(0.2)
    assert 5 < rate.update(110) < 51


def test_cameras_are_counted_by_state_and_one_that_has_played_is_not_missing() -> None:
    played, here = CameraState.ENDED, CameraState.RUNNING
    assert show_states([played, here, here, played, here]) == "3 running, 2 ended"
    assert show_states([]) == "none"
