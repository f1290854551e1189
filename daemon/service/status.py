"""Builds the messages `hello`, `status` and `end` from the service's state, and publishes cameras' changes."""

from dataclasses import asdict

import structlog

from retinad.client.wire import CameraHeader, EndHeader, HelloHeader, ModelHeader, ServiceHeader, StatusHeader
from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.engine.statistics import ModelDescription
from retinad.pipeline.frame_queue import FrameCounters
from retinad.pipeline.frames import TokenOutput
from retinad.pipeline.publish.encode import WIRE_DTYPES
from retinad.pipeline.publish.publisher import Publisher

from .monitor import StateMonitor
from .state import ProcessState, ServiceState, full_reason, overload

_log = structlog.get_logger("retinad")


class Announcer:
    """Publishes each camera's `status` and `end` messages.

    Args:
        publisher: sends the messages.
        monitor: provides the service's own figures.
    """

    def __init__(self, publisher: Publisher, monitor: StateMonitor) -> None:
        self._publisher = publisher
        self._monitor = monitor

    def camera_changed(self, status: CameraStatus, counters: FrameCounters) -> None:
        """Publish a camera's state."""
        self._publisher.publish_status(status_header(status, counters, self._monitor.process))

    def camera_ended(self, status: CameraStatus, counters: FrameCounters, next_seq: int | None) -> None:
        """Publish a camera's last state and its `end`."""
        self.camera_changed(status, counters)
        _log.info("camera finished", camera=status.camera, reason=end_reason(status), **asdict(counters))
        self._publisher.publish_end(end_header(status, counters, next_seq))


def hello_header(state: ServiceState) -> HelloHeader:
    """The message `hello`; the publisher adds its instance, its time and its heartbeat."""
    tokens = [output for output in state.outputs if isinstance(output, TokenOutput)]
    kinds = tuple(dict.fromkeys(output.kind for output in state.outputs))
    return HelloHeader(
        version=state.versions.get("retinad", ""),
        versions=dict(state.versions),
        models=() if state.model is None else (model_header(state.model),),
        cameras=tuple(
            CameraHeader(
                name=camera.config.name,
                mode=camera.config.mode,
                state=camera.status.state,
                outputs=kinds if camera.config.outputs is None else camera.config.outputs,
            )
            for camera in state.cameras
        ),
        layers=tuple(dict.fromkeys(output.layer for output in tokens)),
        tokens=tuple(dict.fromkeys(output.group for output in tokens)),
        dtype=next((WIRE_DTYPES[output.dtype] for output in tokens), ""),
        outputs=tuple(output.name for output in state.outputs),
        service=service_header(state.process),
    )


def status_header(status: CameraStatus, counters: FrameCounters, process: ProcessState) -> StatusHeader:
    """The message `status` of one camera; the publisher adds its instance and its time."""
    return StatusHeader(
        camera=status.camera,
        state=status.state,
        reason=full_reason(status),
        attempt=status.attempt,
        next_try_s=status.next_try_s,
        stream_epoch=status.stream_epoch,
        fps=round(status.fps, 2),
        published_fps=round(status.published_fps, 2),
        overload=overload(status),
        source_size=status.size,
        last_frame_age_s=None if status.last_frame_age_s is None else round(status.last_frame_age_s, 3),
        captured_total=counters.captured,
        published_total=counters.published,
        dropped_total=counters.dropped,
        failed_total=counters.failed,
        in_flight=counters.in_flight,
        nan_total=counters.nan,
        decode_errors_total=counters.decode_errors,
        service=service_header(process),
    )


def end_header(status: CameraStatus, counters: FrameCounters, next_seq: int | None) -> EndHeader:
    """The message `end` of one camera; the publisher adds its instance and its time."""
    return EndHeader(
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


def service_header(process: ProcessState) -> ServiceHeader:
    """The service's own figures, as `hello` and `status` carry them."""
    publisher = process.publisher
    return ServiceHeader(
        uptime_s=round(process.uptime_s, 3),
        loop_lag_ms=process.loop_lag_ms,
        peers=publisher.peers,
        sent_messages=publisher.sent_messages,
        sent_bytes=publisher.sent_bytes,
        handshake_failures=publisher.handshake_failures,
        reloads=process.reloads,
        reload_failures=process.reload_failures,
    )


def model_header(model: ModelDescription) -> ModelHeader:
    """The description of the model in messages."""
    return ModelHeader(name=model.name, weights=model.weights, mixers=model.mixers)


def end_reason(status: CameraStatus) -> str:
    """Why a camera is finished: its source ended, it failed, or it was stopped."""
    if status.state is CameraState.ENDED:
        return "finished" if status.reason is None else f"finished: {status.reason}"
    return full_reason(status) or "failed" if status.state is CameraState.FAILED else "stopped"
