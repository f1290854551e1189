"""Frozen values for a loaded config: for the whole service, for publishing alone, and for a job without cameras."""

from dataclasses import dataclass, field
from pathlib import Path

from retinad.pipeline.config import CameraConfig, ModelConfig, PublishConfig, ResizeMode, StreamConfig

from ..logs.render import LogForm
from ..logs.setup import LogLevel


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The log, which goes to standard error.

    Attributes:
        level: the lowest level of the lines that are logged.
        form: `console` for people, `json` for one JSON object per line, `auto` for console on a terminal, else json.
    """

    level: LogLevel = "info"
    form: LogForm = "auto"


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """The whole config of the service, with all defaults filled in; only the log's format may still be `auto`.

    Attributes:
        log: level and format of the log.
        state_dir: folder for files that survive a restart; may not exist yet.
        keep_state: whether the streams' memories survive a restart.
        keep_state_timeout_s: maximum number of seconds that a stop may take to save the streams' memories.
        keep_state_max_age_s: maximum age, in seconds, of a saved memory that is restored; None for no limit.
        runtime_dir: folder for sockets and locks; may not exist yet.
        exit_when_done: whether the service stops, with exit code 0, once every source has ended.
        publish: where and how records are published.
        model: the model and where it runs.
        cameras: the enabled cameras: at least one, each with a unique name.
        secrets: strings that must never be printed.
        disabled: the cameras with `enabled = false`, which are not opened.
        notes: sentences about surprises that are not errors, such as ignored variables.
    """

    log: LogConfig
    state_dir: Path
    keep_state: bool
    keep_state_timeout_s: float
    keep_state_max_age_s: float | None
    runtime_dir: Path
    exit_when_done: bool
    publish: PublishConfig
    model: ModelConfig
    cameras: tuple[CameraConfig, ...]
    secrets: frozenset[str] = field(repr=False)
    disabled: tuple[CameraConfig, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def states_dir(self) -> Path | None:
        """Folder of the saved streams, or None if streams are not saved. The folder may not exist yet."""
        return self.state_dir / "streams" if self.keep_state else None


@dataclass(frozen=True, slots=True)
class Publishing:
    """Where records are published: the part of a config that is known without its model, and so without torch.

    Attributes:
        publish: where and how records are published.
        runtime_dir: folder for sockets and locks; may not exist yet.
    """

    publish: PublishConfig
    runtime_dir: Path


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The config of a job without cameras: the model and the settings of its one stream.

    Attributes:
        model: the model.
        stream: the settings of the stream.
        resize: how images are resized, unless the job says otherwise.
    """

    model: ModelConfig
    stream: StreamConfig
    resize: ResizeMode = ResizeMode.CROP
