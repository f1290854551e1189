"""Periodic output of the service: watchdog, status messages, log reports, and the line in `systemctl status`."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

import anyio
import structlog

from retinad.pipeline.capture.camera import CameraState
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.errors import DeviceError
from retinad.pipeline.frame_queue import FrameQueues
from retinad.pipeline.publish.publisher import Publisher
from retinad.pipeline.worker import Worker

from ..logs.rate_limit import RateLimit
from .cameras import PACE_S, Cameras
from .loop_lag import LoopLag
from .monitor import StateMonitor
from .state import ServiceState, overload
from .status import Announcer
from .systemd import Notifier

_LOOK_S = 0.2
_QUIET_S = 60.0
"""Interval in seconds at which a report is logged at level info even if nothing has changed."""

_SLOW_LOG_S = 10.0
"""Interval in seconds in which at most one line about slow subscribers is logged, however many there are."""

_log = structlog.get_logger("retinad")


async def beat(
    publisher: Publisher, queues: FrameQueues, worker: Worker[Engine], notifier: Notifier, lag: LoopLag
) -> None:
    """Accept subscribers, measure the event loop's lag, and feed the watchdog, forever.

    If the process or the machine stood still, say so: old frames of live cameras were dropped.

    The watchdog is fed only while this loop runs and the worker is idle or finishes its steps: a step that takes as
    long as the watchdog's interval stops the feeding. Cameras do not affect it.
    """
    interval_s = notifier.watchdog_interval_s
    fed_at = float("-inf")
    while True:
        lag.beat()
        queues.beat()
        if (pause := queues.take_pause()) is not None:
            _log.warning("stood still", seconds=round(pause.duration_s, 1), old_frames_dropped=pause.dropped)
        publisher.poll()
        if interval_s is not None and time.monotonic() - fed_at >= interval_s / 2 and worker.busy_s < interval_s:
            notifier.watchdog()
            fed_at = time.monotonic()
        await anyio.sleep(lag.interval_s)


async def end_when_hung(worker: Worker[Engine], limit_s: float) -> None:
    """Watch the worker, forever, for a call that exceeds its limit.

    Args:
        worker: runs the calls.
        limit_s: their time limit in seconds, for the message.

    Raises:
        DeviceError: a call hangs; the log has its stack. Its results, and those of later calls, are lost.
    """
    while True:
        await anyio.sleep(_LOOK_S)
        if worker.is_overdue:
            await anyio.sleep(_LOOK_S)  # if the machine was suspended, the call did not hang: it finishes in this time
            if worker.is_overdue:
                _log.critical("model step hangs", busy_s=round(worker.busy_s, 1), stack=worker.stack())
                raise DeviceError(f"a step did not finish within model.step_timeout_s = {limit_s:g} s")


async def report(
    cameras: Cameras,
    monitor: StateMonitor,
    announcer: Announcer,
    publisher: Publisher,
    notifier: Notifier,
    interval_s: float,
) -> None:
    """Publish every camera's status, then log the service's state and show it in systemd, every `interval_s`.

    The log's line is at level info if anything has changed, and once a minute; else at level debug.
    """
    rate, slow, limit, pace = FrameRate(), set[str](), RateLimit(_SLOW_LOG_S), ReportPace()
    while True:
        await anyio.sleep(interval_s)
        for name in cameras.names:
            if (camera := cameras.report(name)) is not None:  # may have ended since the loop began
                announcer.camera_changed(camera.status, camera.counters)
            await anyio.sleep(PACE_S)
        state = monitor.snapshot()
        frames_per_s = rate.update(state.totals.published)
        notifier.status(status_line(state, frames_per_s))
        _log.log(pace.level(state), "report", **report_fields(state, frames_per_s))
        slow.update(publisher.take_slow_peers())
        if slow and limit.admit("slow") is not None:
            _log.warning(
                "subscribers too slow, messages dropped",
                peers=sorted(slow),
                kept_messages=state.process.publisher.send_hwm,
                advice="read faster, subscribe to fewer cameras, publish fewer layers, or raise publish.buffer_mb",
            )
            slow.clear()
        monitor.lag.reset()


def status_line(state: ServiceState, frames_per_s: float) -> str:
    """The state as one line, for `systemctl status`."""
    states = count_states(camera.status.state for camera in state.cameras)
    line = f"cameras: {states}; {frames_per_s:.1f} of {_source_fps(state):.1f} frames/s"
    overloaded = _overloaded(state)
    return f"{line}; overloaded: {', '.join(overloaded)}" if overloaded else line


def report_fields(state: ServiceState, frames_per_s: float) -> dict[str, object]:
    """The state as fields of the log's report."""
    return {
        "frames_per_s": round(frames_per_s, 1),
        "source_frames_per_s": round(_source_fps(state), 1),
        **({"overloaded": words} if (words := _overloaded(state)) else {}),
        "cameras": count_states(camera.status.state for camera in state.cameras),
        "published_total": state.totals.published,
        "dropped_total": state.totals.dropped,
        "failed_total": state.totals.failed,
        "nan_total": state.totals.nan,
        "peers": state.process.publisher.peers,
        "loop_lag_ms": state.process.loop_lag_ms,
    }


class ReportPace:
    """Decides whether a report is news: its content has changed, or a minute has passed.

    Changed rates and growing totals are not news.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: object = None
        self._said_at = clock()

    def level(self, state: ServiceState) -> int:
        """The log level of a report of this state."""
        states = tuple((camera.config.name, camera.status.state) for camera in state.cameras)
        failures = (state.totals.failed, state.totals.nan)
        news = (states, failures, tuple(_overloaded(state)), state.process.publisher.peers)
        if news == self._said and self._clock() - self._said_at < _QUIET_S:
            return logging.DEBUG
        self._said, self._said_at = news, self._clock()
        return logging.INFO


def _source_fps(state: ServiceState) -> float:
    return sum(camera.status.fps for camera in state.cameras)


def _overloaded(state: ServiceState) -> list[str]:
    """Names of the cameras whose sources are faster than the model."""
    return [camera.config.name for camera in state.cameras if overload(camera.status) is not None]


def count_states(states: Iterable[CameraState]) -> str:
    """Number of cameras in each state that occurs: `6 running, 2 ended`."""
    count = Counter(states)
    return ", ".join(f"{count[state]} {state}" for state in CameraState if count[state]) or "none"


class FrameRate:
    """Frames per second between two readings of a counter."""

    def __init__(self) -> None:
        self._count = 0
        self._at = time.monotonic()

    def update(self, count: int) -> float:
        """The rate since the last call; the first time, since the object was made."""
        now = time.monotonic()
        frames_per_s = (count - self._count) / max(now - self._at, 1e-9)
        self._count, self._at = count, now
        return frames_per_s
