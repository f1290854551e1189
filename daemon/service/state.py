"""The service's state at one moment, as one frozen value that status messages, log, systemd and exporters show.

To add a metric: add one field here, fill it in `monitor.py`, and add one line to each renderer that shows it
(`status.py` for messages, `heartbeat.py` for the log and systemd).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.engine.statistics import EngineStatistics, ModelDescription
from retinad.pipeline.frame_queue import FrameCounters
from retinad.pipeline.frames import Output
from retinad.pipeline.publish.publisher import PublisherStatistics

OVERLOAD_SHARE = 0.1
"""Share of a source's frames that may be dropped before this counts as overload: jitter also causes drops."""


@dataclass(frozen=True, slots=True)
class CameraReport:
    """One camera's state.

    Attributes:
        config: its configuration.
        status: the state of its connection.
        counters: its frames since the service started; a copy, which later frames do not change.
        next_epoch: stream epoch of its next connection.
        refused: whether the engine had no room for it.
    """

    config: CameraConfig
    status: CameraStatus
    counters: FrameCounters
    next_epoch: int
    refused: bool = False


@dataclass(frozen=True, slots=True)
class ProcessState:
    """State of the service's process, apart from cameras and model.

    Attributes:
        uptime_s: seconds since the publisher was opened.
        loop_lag_ms: worst lag of the event loop in the current report interval, in milliseconds.
        reloads: attempts to reload the config.
        reload_failures: attempts that changed nothing, because the config was invalid or could not be read.
        publisher: messages sent and connections.
    """

    uptime_s: float = 0.0
    loop_lag_ms: float = 0.0
    reloads: int = 0
    reload_failures: int = 0
    publisher: PublisherStatistics = field(default_factory=PublisherStatistics)


@dataclass(frozen=True, slots=True)
class ServiceState:
    """State of the whole service.

    Attributes:
        versions: versions of retinad and its libraries, by name.
        outputs: the outputs that are published of each frame.
        endpoints: where the publisher is bound.
        model: the loaded model, or None while it loads.
        process: uptime, reloads, event loop and publisher.
        engine: counters of the engine and its streams, as of the last reading (see `StateMonitor.follow_engine`).
        cameras: every configured camera, including those that have not started and those that are finished.
        totals: frame counters summed over all cameras since the start, including cameras that were removed.
    """

    versions: Mapping[str, str]
    outputs: tuple[Output, ...]
    endpoints: tuple[str, ...]
    model: ModelDescription | None
    process: ProcessState
    engine: EngineStatistics
    cameras: tuple[CameraReport, ...]
    totals: FrameCounters


def full_reason(status: CameraStatus) -> str | None:
    """The reason for a camera's state, preceded by the kind of fault; None if there is no reason to give."""
    return status.reason if status.fault is None else f"{status.fault}: {status.reason}"


def overload(status: CameraStatus) -> str | None:
    """A sentence that says that the model is slower than a running source; None if it keeps up."""
    arriving = status.published_fps + status.dropped_fps
    if status.state is not CameraState.RUNNING or status.dropped_fps <= OVERLOAD_SHARE * arriving:
        return None
    return f"overloaded: {status.published_fps:.1f} of {arriving:.1f} frames/s are published, the rest is dropped"
