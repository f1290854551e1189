"""What the service's log says of its start, its cameras and its reloads: enough to act on, and no line a second."""

import dataclasses
import logging
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence

import structlog

from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.capture.faults import is_damage
from retinad.pipeline.config import CurveConfig
from retinad.pipeline.engine.statistics import ModelDescription
from retinad.pipeline.frames import FrameFailure

from ..config.keys import config_key
from ..config.load import ServiceConfig
from ..logs.rate_limit import RateLimit
from .startup_times import ReadyTimes
from .status import described

_INTERVAL_S = 10.0
_DAMAGED = 3
"""Damaged pictures or packets of a camera that are named in an interval."""
_NUMBERS = re.compile(r"\d+")
_MILESTONES = frozenset({10, 100, 1000, 10_000, 100_000})

_log = structlog.get_logger("retinad")


class CameraLog:
    """Logs one camera's states: a new trouble as a warning, the same trouble again only at the 10th, 100th ... time."""

    def __init__(self, camera: str) -> None:
        self._log = _log.bind(camera=camera)
        self._before: CameraStatus | None = None
        self._trouble: str | None = None
        self._notes: tuple[str, ...] = ()
        self._limit = RateLimit(_INTERVAL_S, _DAMAGED)

    def state(self, status: CameraStatus) -> None:
        """Log a change of state, and what a newly opened source does otherwise than it was asked."""
        self._log.log(self._level(status), status.state, **described(status))
        self._before = status
        before, self._notes = self._notes, () if status.info is None else status.info.notes
        if self._notes != before:
            for note in self._notes:
                self._log.warning(note)

    def line(self, line: str) -> None:
        """Log what the capture process printed."""
        if not is_damage(line):
            self._log.debug(line)
        elif (more := self._limit.admit("damage")) is not None:
            self._log.warning(line, more_like_it=more)

    def close(self) -> None:
        """Log how much damage was not named; the camera has ended or was stopped."""
        held_back = sum(self._limit.take_suppressed().values())
        if held_back:
            self._log.warning("more damage than was named", more_like_it=held_back)

    def _level(self, status: CameraStatus) -> int:
        reason = _NUMBERS.sub("#", status.reason or "")  # FFmpeg says in nanoseconds after how long it gave up
        known, is_known = self._trouble, reason == self._trouble
        match status.state:
            case CameraState.RUNNING:
                self._trouble = None
                return logging.DEBUG if self._is_next_pass(status) else logging.INFO
            case CameraState.BACKOFF | CameraState.STALLED:
                self._trouble = reason
                return logging.DEBUG if is_known and status.attempt not in _MILESTONES else logging.WARNING
            case CameraState.CONNECTING:
                return logging.INFO if known is None else logging.DEBUG
            case CameraState.FAILED:
                return logging.ERROR
            case CameraState.ENDED:
                return logging.DEBUG  # said again, with the counters, when its last frame is out

    def _is_next_pass(self, status: CameraStatus) -> bool:
        # Of a source that is looped: else a short one would fill the log.
        before = self._before
        return before is not None and (before.state, before.size) == (CameraState.RUNNING, status.size)


class FailureLog:
    """Logs frames that gave no features; of a reason that repeats, one line a camera in each interval."""

    def __init__(self) -> None:
        self._limit = RateLimit(_INTERVAL_S)

    def __call__(self, failure: FrameFailure) -> None:
        """Log a failure, if its turn has come."""
        stamp = failure.stamp
        suppressed = self._limit.admit(f"{stamp.camera} {_NUMBERS.sub('#', failure.reason)}")
        if suppressed is not None:
            _log.warning(
                "a frame gave no features",
                camera=stamp.camera,
                stream_epoch=stamp.stream_epoch,
                source_seq=stamp.source_seq,
                reason=failure.reason,
                more_like_it=suppressed,
            )


def log_start(
    model: ModelDescription,
    endpoints: Sequence[str],
    config: ServiceConfig,
    versions: Mapping[str, str],
    times: ReadyTimes,
) -> None:
    """Log what runs where and how long that took to come up, and the line to paste for a first subscriber."""
    _log.info(
        "started",
        model=model.name,
        weights=model.weights,
        device=model.device,
        dtype=model.dtype,
        attention=model.attention,
        execution=model.execution,
        parameters=model.parameters,
        endpoints=list(endpoints),
        cameras=[camera.name for camera in config.cameras],
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
        ready_after_s=times.total_s,
        imports_s=times.imports_s,
        weights_s=times.weights_s,
        kernels_s=times.kernels_s,
        warm_up_s=times.warm_up_s,
        kernels_compiled=times.kernels_compiled,
    )
    if model.attention_reason is not None:
        _log.info("attention chosen", attention=model.attention, reason=model.attention_reason)
    if config.model.random_weights:
        _log.warning("the weights are random: the features mean nothing", set="model.checkpoint")
    if model.weights_note is not None:
        _log.warning(
            "what the checkpoint says of itself", note=model.weights_note, checkpoint=str(config.model.checkpoint)
        )
    _log.info("subscribe with", command=subscribe_command(endpoints, config.publish.curve))


def log_reload(old: ServiceConfig, new: ServiceConfig) -> None:
    """Log which cameras come, go and change."""
    before, after = ({camera.name: camera for camera in config.cameras} for config in (old, new))
    _log.info(
        "reloaded",
        added=sorted(after.keys() - before.keys()),
        removed=sorted(before.keys() - after.keys()),
        changed=sorted(name for name in before.keys() & after.keys() if before[name] != after[name]),
    )


def different_keys(old: object, new: object, prefix: str = "") -> Iterator[str]:
    """Keys of the fields in which two configs of the same kind differ, their cameras and secrets left out."""
    for field in dataclasses.fields(old):  # type: ignore[arg-type]  # only called with dataclasses
        ours, theirs = getattr(old, field.name), getattr(new, field.name)
        if ours == theirs or field.name in ("cameras", "secrets"):
            continue
        name = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(ours) and type(ours) is type(theirs):
            yield from different_keys(ours, theirs, f"{name}.")
        else:
            yield config_key(name if "." in name else f"service.{name}")


def subscribe_command(endpoints: Sequence[str], curve: CurveConfig | None) -> str:
    """The line to paste for a first subscriber on this machine."""
    endpoint = next((endpoint for endpoint in endpoints if endpoint.startswith("tcp://")), endpoints[0])
    for anywhere in ("0.0.0.0", "[::]", "*"):
        endpoint = endpoint.replace(f"//{anywhere}:", "//127.0.0.1:")
    keys = " --client-key CLIENT.key_secret --server-key SERVER.key" if curve else ""
    return f"{_program()} subscribe {endpoint}{keys}"


def _program() -> str:
    """How this program was called, if its bare name would not be found."""
    if shutil.which("retinad"):
        return "retinad"
    called = sys.argv[0]
    return f"{sys.executable} -m retinad.daemon" if called.endswith(".py") else called
