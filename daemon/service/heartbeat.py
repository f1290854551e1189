"""What the service says of itself at intervals: to systemd's watchdog, to its subscribers, and in its log."""

import time
from collections import Counter
from collections.abc import Iterable

import anyio
import structlog

from retinad.pipeline.capture.camera import CameraState
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.errors import DeviceError
from retinad.pipeline.publish.publisher import Publisher
from retinad.pipeline.worker import Worker

from ..logs.rate_limit import RateLimit
from .cameras import PACE_S, Cameras
from .loop_lag import LoopLag
from .status import Announcer
from .systemd import Notifier

_LOOK_S = 0.2
_SLOW_LOG_S = 10.0
"""One line at most in this time, whatever number of subscribers does not keep up."""

_log = structlog.get_logger("retinad")


async def beat(publisher: Publisher, worker: Worker[Engine], notifier: Notifier, lag: LoopLag) -> None:
    """Let subscribers in, measure the loop's lag, and feed the watchdog, for ever.

    The watchdog is fed only while this loop runs and the worker either has nothing to do or gets its steps done: a step
    that takes as long as the watchdog's interval stops the feeding. Cameras do not matter to it.
    """
    interval_s = notifier.watchdog_interval_s
    fed_at = float("-inf")
    while True:
        lag.beat()
        publisher.poll()
        if interval_s is not None and time.monotonic() - fed_at >= interval_s / 2 and worker.busy_s < interval_s:
            notifier.watchdog()
            fed_at = time.monotonic()
        await anyio.sleep(lag.interval_s)


async def end_when_hung(worker: Worker[Engine], limit_s: float) -> None:
    """Wait, for ever, for a call in the worker that takes longer than it may.

    Args:
        worker: what may hang.
        limit_s: its limit, for the message.

    Raises:
        DeviceError: a call hangs; the log has where. Nothing of it, or after it, can be published.
    """
    while True:
        await anyio.sleep(_LOOK_S)
        if worker.is_overdue:
            await anyio.sleep(_LOOK_S)  # a machine that stood still as a whole is no hang: it goes on meanwhile
            if worker.is_overdue:
                _log.critical("the model hangs", busy_s=round(worker.busy_s, 1), stack=worker.stack())
                raise DeviceError(f"a step is not done after model.step_timeout_s = {limit_s:g}")


async def report(
    cameras: Cameras,
    announcer: Announcer,
    publisher: Publisher,
    notifier: Notifier,
    lag: LoopLag,
    interval_s: float,
) -> None:
    """Publish every camera's status, log the frame rate, and show it in `systemctl status`, every `interval_s`."""
    rate, slow, limit = FrameRate(), set[str](), RateLimit(_SLOW_LOG_S)
    while True:
        await anyio.sleep(interval_s)
        reports = cameras.reports
        for name in [camera.config.name for camera in reports]:
            if (camera := cameras.report(name)) is not None:  # as it is now: it may have ended meanwhile
                announcer.camera_changed(camera.status, camera.counters)
            await anyio.sleep(PACE_S)
        counters = cameras.counters
        frames_per_s = rate.update(sum(one.published for one in counters))
        cameras_now = show_states(camera.status.state for camera in reports)
        notifier.status(f"cameras: {cameras_now}; {frames_per_s:.1f} frames/s")
        statistics = publisher.statistics()
        _log.info(
            "report",
            frames_per_s=round(frames_per_s, 1),
            cameras=cameras_now,
            published_total=sum(one.published for one in counters),
            dropped_total=sum(one.dropped for one in counters),
            failed_total=sum(one.failed for one in counters),
            nan_total=sum(one.nan for one in counters),
            peers=statistics.peers,
            loop_lag_ms=lag.worst_ms,
        )
        slow.update(publisher.take_slow_peers())
        if slow and limit.admit("slow") is not None:
            _log.warning(
                "subscribers do not keep up, and lose messages",
                peers=sorted(slow),
                kept_messages=statistics.send_hwm,
                advice="read faster, subscribe to fewer cameras, publish fewer layers, or raise publish.buffer_mb",
            )
            slow.clear()
        if statistics.keys_error is not None:
            _log.error("the authorised keys cannot be read; those read last still hold", problem=statistics.keys_error)
        lag.reset()


def show_states(states: Iterable[CameraState]) -> str:
    """How many cameras are in which state, of the states that occur: `6 running, 2 ended`."""
    count = Counter(states)
    return ", ".join(f"{count[state]} {state}" for state in CameraState if count[state]) or "none"


class FrameRate:
    """Frames a second between two readings of a counter."""

    def __init__(self) -> None:
        self._count = 0
        self._at = time.monotonic()

    def update(self, count: int) -> float:
        """The rate since the last call, or since this was made."""
        now = time.monotonic()
        frames_per_s = (count - self._count) / max(now - self._at, 1e-9)
        self._count, self._at = count, now
        return frames_per_s
