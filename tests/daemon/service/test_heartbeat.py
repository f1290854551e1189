"""Watchdog and report: the watchdog is fed while the worker idles or finishes steps, and not while a step hangs."""

import logging
from dataclasses import dataclass, field, replace
from typing import cast

import anyio
import pytest
from structlog.testing import capture_logs

from retinad.daemon.service import cameras as cameras_module
from retinad.daemon.service import status, systemd
from retinad.daemon.service.cameras import PACE_S
from retinad.daemon.service.heartbeat import (
    FrameRate,
    ReportPace,
    beat,
    count_states,
    report,
    report_fields,
    status_line,
)
from retinad.daemon.service.loop_lag import LoopLag
from retinad.daemon.service.monitor import StateMonitor
from retinad.daemon.service.state import CameraReport, ServiceState, overload
from retinad.daemon.service.status import status_header
from retinad.pipeline import worker as worker_module
from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frame_queue import FrameCounters, FrameQueues
from retinad.pipeline.publish import publisher as publisher_module
from retinad.pipeline.publish.publisher import PublisherStatistics

pytestmark = pytest.mark.anyio

INTERVAL_S = 0.1


class Publisher:
    def __init__(self) -> None:
        self.polls = 0
        self.endpoints: tuple[str, ...] = ()

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
        await beat(
            cast("publisher_module.Publisher", publisher),
            FrameQueues(),
            cast("worker_module.Worker[Engine]", worker),
            cast("systemd.Notifier", notifier),
            LoopLag(0.01),
        )
    return publisher


@pytest.mark.parametrize("busy_s", [0.0, 0.9 * INTERVAL_S], ids=["idle", "in a step"])
async def test_a_worker_that_makes_progress_feeds_the_watchdog_within_every_interval(busy_s: float) -> None:
    notifier = Notifier(INTERVAL_S)
    await beat_for(10 * INTERVAL_S, Worker(busy_s), notifier)
    assert 5 <= len(notifier.fed_at) <= 21


async def test_a_hung_step_stops_only_the_feeding_until_it_is_over() -> None:
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
    removed: FrameCounters = field(default_factory=FrameCounters)

    @property
    def names(self) -> list[str]:
        return [one.config.name for one in self.reports]

    @property
    def totals(self) -> FrameCounters:
        return self.removed

    def report(self, camera: str) -> CameraReport | None:
        return None if camera in self.ended else next(one for one in self.reports if one.config.name == camera)


class Announcer:
    def __init__(self) -> None:
        self.announced: list[tuple[float, str]] = []

    def camera_changed(self, status: CameraStatus, counters: FrameCounters) -> None:
        self.announced.append((anyio.current_time(), status.camera))


async def test_statuses_of_many_cameras_are_paced_and_ended_cameras_are_skipped() -> None:
    """All at once would be more than a subscriber's queue may hold."""
    names = [f"cam{number}" for number in range(32)]
    reports = [
        CameraReport(CameraConfig(n, "synthetic:"), CameraStatus(n, CameraState.RUNNING), FrameCounters(), 0)
        for n in names
    ]
    announcer = Announcer()
    cameras = cast("cameras_module.Cameras", Cameras(reports, {"cam7"}, FrameCounters(published=7, dropped=3)))
    publisher = cast("publisher_module.Publisher", Publisher())
    monitor = StateMonitor((), {}, LoopLag(0.01))
    monitor.watch(publisher)
    monitor.cameras = cameras
    with capture_logs() as log, anyio.move_on_after(0.3):
        await report(
            cameras,
            monitor,
            cast("status.Announcer", announcer),
            publisher,
            cast("systemd.Notifier", Notifier(None)),
            0.01,
        )
    totals = next(line for line in log if line["event"] == "report")
    assert (totals["cameras"], totals["published_total"], totals["dropped_total"]) == ("32 running", 7, 3)
    (line,) = (line for line in log if line["event"] == "subscribers too slow, messages dropped")
    assert line["peers"] == ["127.0.0.1:5", "process 7"]
    first = announcer.announced[: len(names) - 1]
    assert [name for _, name in first] == [name for name in names if name != "cam7"]
    assert first[-1][0] - first[0][0] >= 30 * PACE_S


async def test_the_rate_counts_from_the_last_reading() -> None:
    rate = FrameRate()
    rate.update(100)
    await anyio.sleep(0.2)
    assert 5 < rate.update(110) < 51


def test_cameras_are_counted_by_state_and_ended_ones_are_included() -> None:
    played, here = CameraState.ENDED, CameraState.RUNNING
    assert count_states([played, here, here, played, here]) == "3 running, 2 ended"
    assert count_states([]) == "none"


def state_of(
    *, published_fps: float = 20.0, dropped_fps: float = 0.0, failed: int = 0, **changes: object
) -> ServiceState:
    status = CameraStatus("a", CameraState.RUNNING, fps=20.0, published_fps=published_fps, dropped_fps=dropped_fps)
    camera = CameraReport(CameraConfig("a", "synthetic:"), replace(status, **changes), FrameCounters(), 0)  # type: ignore[arg-type]
    monitor = StateMonitor((), {}, LoopLag(0.01))
    totals = FrameCounters(published=7, failed=failed)
    return replace(monitor.snapshot(), cameras=(camera,), totals=totals)


def test_a_report_is_news_if_something_changed_and_once_a_minute() -> None:
    now = 0.0
    pace = ReportPace(lambda: now)
    levels = []
    for now, state in (  # noqa: B007  # the clock
        (5.0, state_of()),
        (10.0, state_of(published_fps=19.0)),
        (15.0, state_of(failed=1)),
        (20.0, state_of(failed=1)),
        (25.0, state_of(failed=1, published_fps=5.0, dropped_fps=15.0)),
        (30.0, state_of(failed=1, published_fps=6.0, dropped_fps=14.0)),
        (80.0, state_of(failed=1, published_fps=6.0, dropped_fps=14.0)),
        (85.0, state_of(failed=1, published_fps=6.0, dropped_fps=14.0)),
        (90.0, state_of(failed=1, state=CameraState.BACKOFF)),
    ):
        levels.append(pace.level(state) == logging.INFO)
    assert levels == [True, False, True, False, True, False, False, True, True]


def test_the_report_has_both_rates_and_names_overloaded_cameras() -> None:
    state = state_of(published_fps=5.0, dropped_fps=15.0)
    fields = report_fields(state, 5.0)
    assert (fields["frames_per_s"], fields["source_frames_per_s"], fields["overloaded"]) == (5.0, 20.0, ["a"])
    assert status_line(state, 5.0) == "cameras: 1 running; 5.0 of 20.0 frames/s; overloaded: a"
    assert "overloaded" not in report_fields(state_of(), 20.0)
    assert status_line(state_of(), 20.0) == "cameras: 1 running; 20.0 of 20.0 frames/s"


def test_overload_is_told_in_words_while_a_source_runs() -> None:
    (camera,) = state_of(published_fps=5.0, dropped_fps=15.0).cameras
    assert overload(camera.status) == "overloaded: 5.0 of 20.0 frames/s are published, the rest is dropped"
    (header,) = (status_header(camera.status, camera.counters, state_of().process),)
    assert (header.fps, header.published_fps, header.overload) == (20.0, 5.0, overload(camera.status))
    for calm in (state_of(), state_of(published_fps=19.5, dropped_fps=0.5), state_of(published_fps=0.0)):
        assert overload(calm.cameras[0].status) is None
    gone = state_of(published_fps=5.0, dropped_fps=15.0, state=CameraState.BACKOFF)
    assert overload(gone.cameras[0].status) is None
