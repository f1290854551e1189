"""What the service says of itself and its cameras on its sockets: the parts' own values, turned into messages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import structlog

from retinad.client.wire import CameraHeader, EndHeader, HelloHeader, ModelHeader, StatusHeader
from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.engine.statistics import ModelDescription
from retinad.pipeline.frame_queue import FrameCounters
from retinad.pipeline.frames import Output, TokenOutput
from retinad.pipeline.publish.encode import WIRE_DTYPES
from retinad.pipeline.publish.publisher import Publisher

from .cameras import CameraReport
from .loop_lag import LoopLag

_log = structlog.get_logger("retinad")


class Description:
    """What `hello` says of the service. Called by the publisher each time it sends one.

    Args:
        outputs: what is published of each frame.
        versions: versions of retinad and of the libraries below it, by name.
    """

    def __init__(self, outputs: Sequence[Output], versions: Mapping[str, str]) -> None:
        self._tokens = [output for output in outputs if isinstance(output, TokenOutput)]
        self._versions = dict(versions)
        self.models: tuple[ModelHeader, ...] = ()
        self.cameras: Callable[[], Sequence[CameraReport]] = tuple

    def __call__(self) -> HelloHeader:
        """The present content of `hello`."""
        return HelloHeader(
            version=self._versions.get("retinad", ""),
            versions=self._versions,
            models=self.models,
            cameras=tuple(
                CameraHeader(name=report.config.name, mode=report.config.mode, state=report.status.state)
                for report in self.cameras()
            ),
            layers=tuple(dict.fromkeys(output.layer for output in self._tokens)),
            tokens=tuple(dict.fromkeys(output.group for output in self._tokens)),
            dtype=next((WIRE_DTYPES[output.dtype] for output in self._tokens), ""),
        )


class Announcer:
    """Publishes the cameras' states and ends.

    Args:
        publisher: where the messages go.
        lag: how late the event loop runs.
    """

    def __init__(self, publisher: Publisher, lag: LoopLag) -> None:
        self._publisher = publisher
        self._lag = lag

    def camera_changed(self, status: CameraStatus, counters: FrameCounters) -> None:
        """Publish a camera's state."""
        header = StatusHeader(
            camera=status.camera,
            state=status.state,
            reason=_reason(status),
            attempt=status.attempt,
            next_try_s=status.next_try_s,
            stream_epoch=status.stream_epoch,
            fps=round(status.fps, 2),
            source_size=status.size,
            last_frame_age_s=None if status.last_frame_age_s is None else round(status.last_frame_age_s, 3),
            captured_total=counters.captured,
            published_total=counters.published,
            dropped_total=counters.dropped,
            failed_total=counters.failed,
            in_flight=counters.in_flight,
            nan_total=counters.nan,
            decode_errors_total=counters.decode_errors,
        )
        self._publisher.publish_status(header, loop_lag_ms=self._lag.worst_ms)

    def camera_ended(self, status: CameraStatus, counters: FrameCounters, next_seq: int | None) -> None:
        """Publish that a camera is finished."""
        self.camera_changed(status, counters)
        _log.info("camera finished", camera=status.camera, reason=end_reason(status), **asdict(counters))
        self._publisher.publish_end(
            EndHeader(
                camera=status.camera,
                reason=end_reason(status),
                stream_epoch=status.stream_epoch,
                next_seq=next_seq,
                captured_total=counters.captured,
                published_total=counters.published,
                dropped_total=counters.dropped,
                failed_total=counters.failed,
                expected_total=status.info.frame_count if status.info else None,
            )
        )


def model_header(model: ModelDescription) -> ModelHeader:
    """The model as messages name it."""
    return ModelHeader(name=model.name, weights=model.weights, mixers=model.mixers)


def end_reason(status: CameraStatus) -> str:
    """Why a camera with this last status is finished: it played, it failed, or it was told to stop."""
    if status.state is CameraState.ENDED:
        return "finished" if status.reason is None else f"finished: {status.reason}"
    return _reason(status) or "failed" if status.state is CameraState.FAILED else "stopped"


def described(status: CameraStatus) -> dict[str, object]:
    """What a log line says of a camera's state, beyond the state."""
    parts: dict[str, object] = {
        "reason": _reason(status),
        "attempt": status.attempt or None,
        "next_try_s": None if status.next_try_s is None else round(status.next_try_s, 1),
        "stream_epoch": status.stream_epoch,
        "size": status.size and "{}x{}".format(*status.size),
    }
    return {key: value for key, value in parts.items() if value is not None}


def _reason(status: CameraStatus) -> str | None:
    if status.fault is None:
        return status.reason
    return f"{status.fault}: {status.reason}"
