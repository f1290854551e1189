"""The service's whole configuration as one frozen value, read from one TOML file and the environment's overrides.

This is one of the three files that read the process's environment (the others are `systemd.py` and `caches.py`).
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retinad.pipeline.config import CameraConfig, ModelConfig, PublishConfig
from retinad.pipeline.model.presets import TINY
from retinad.pipeline.sources.redact import redact_url, secrets_of

from ..logs.render import LogForm
from ..logs.setup import LogLevel
from .directories import Directories, find_directories
from .environment import TABLES, apply_overrides, report_unknown
from .errors import ConfigError, Problem, show_key, suggest
from .locations import has_long_key, is_deeper, locate_keys
from .model import ResolvedModel, place_model, resolve_model
from .problems import Report
from .resolve import check_names, given, resolve_camera, resolve_publish, resolve_stream
from .tables import CameraTable, ModelTable, PublishTable, ServiceTable, StreamTable

__all__ = [
    "ConfigError",
    "LogConfig",
    "Problem",
    "Publishing",
    "ServiceConfig",
    "load_config",
    "load_publishing",
]

_LARGEST_FILE = 1 << 20
_DEEPEST = 32
_MOST_CAMERAS = 4096
"""As many as a subscriber remembers, and four times what a model serves; each takes most of a millisecond to check."""

_TOO_DEEP = "Nested too deeply"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The log, which goes to standard error.

    Attributes:
        level: lines below it are left out.
        form: `console` for people, `json` for one JSON object a line, `auto` for console on a terminal, else json.
    """

    level: LogLevel = "info"
    form: LogForm = "auto"


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """All that the service is told; nothing in it is `auto` or unset any more but the log's format.

    Attributes:
        log: the log.
        state_dir: folder for what survives a restart; not made yet.
        keep_state: whether the streams' memories survive a restart.
        runtime_dir: folder for sockets and locks; not made yet.
        exit_when_done: whether the service stops, with exit code 0, once every source has ended.
        publish: where and how records are published.
        model: the model and where it runs.
        cameras: at least one, each with a name of its own.
        secrets: strings that must never be printed.
    """

    log: LogConfig
    state_dir: Path
    keep_state: bool
    runtime_dir: Path
    exit_when_done: bool
    publish: PublishConfig
    model: ModelConfig
    cameras: tuple[CameraConfig, ...]
    secrets: frozenset[str] = field(repr=False)

    @property
    def states_dir(self) -> Path | None:
        """Folder of the memories that survive a restart, or None if none do; not made yet."""
        return self.state_dir / "streams" if self.keep_state else None


@dataclass(frozen=True, slots=True)
class _Tables:
    service: ServiceTable | None
    publish: PublishTable | None
    model: ModelTable | None
    stream: StreamTable | None
    cameras: tuple[CameraTable | None, ...]


def load_config(path: Path, environment: Mapping[str, str] = os.environ) -> ServiceConfig:
    """Read, check and resolve a config.

    Args:
        path: the TOML file.
        environment: `RETINAD_<TABLE>__<KEY>`, each of which overrides a key, and systemd's directories and credentials.

    Raises:
        ConfigError: with everything that is wrong.
        ModelError: the config is right, but the device that it names or needs is not there.
    """
    tables, report = _read_tables(path, environment)
    return _resolve(tables, find_directories(environment), environment, report)


@dataclass(frozen=True, slots=True)
class Publishing:
    """Where records are published: what of a config is known without its model, and so without torch.

    Attributes:
        publish: as in `ServiceConfig`.
        runtime_dir: as in `ServiceConfig`.
    """

    publish: PublishConfig
    runtime_dir: Path


def load_publishing(path: Path, environment: Mapping[str, str] = os.environ) -> Publishing | None:
    """Where a config publishes, or None if something is wrong with it: `load_config` then says all that is.

    Args:
        path: the TOML file.
        environment: as of `load_config`.

    Raises:
        ConfigError: the file cannot be read, or is no TOML.
    """
    tables, report = _read_tables(path, environment)
    directories = find_directories(environment)
    publish = resolve_publish(tables.publish or PublishTable(), directories, environment, report)
    return None if report.problems else Publishing(publish, directories.runtime)


def _read_tables(path: Path, environment: Mapping[str, str]) -> tuple[_Tables, Report]:
    text = read_text(path)
    raw = parse_toml(path, text)
    _check_number(path, raw.get("camera"))
    data, variables, unknown = apply_overrides(raw, environment)
    report = Report(path, locate_keys(text), variables)
    report_unknown(unknown, raw, report)
    tables = _validate(data, report)
    check_names(data.get("camera"), report)
    return tables, report


def read_text(path: Path) -> str:
    """A config file's text.

    Raises:
        ConfigError: it cannot be read, or is no text.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no path can hold a null character"
        hint = "`retinad config > FILE` makes one to start from"
        raise ConfigError([Problem(str(path), None, None, "", f"cannot read the config: {reason}", hint)]) from None
    if len(content) > _LARGEST_FILE:
        raise ConfigError([Problem(str(path), None, None, "", "cannot read the config: larger than 1 MiB")])
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - (content.rfind(b"\n", 0, error.start) + 1) + 1
        raise ConfigError([Problem(str(path), line, column, "", "not UTF-8 text")]) from None


def parse_toml(path: Path, text: str) -> dict[str, Any]:
    """What the text of a config file says.

    Raises:
        ConfigError: it is not TOML.
    """
    try:
        if not has_long_key(text):
            data = tomllib.loads(text)
            if not is_deeper(data, _DEEPEST):
                return data
        message = _TOO_DEEP
    except RecursionError:
        message = _TOO_DEEP
    except ValueError as error:
        message = str(error)
    problem = _syntax_problem(path, text, message)
    raise ConfigError([problem])


def _syntax_problem(path: Path, text: str, message: str) -> Problem:
    """The place that tomllib names; for a fault that it notes at the file's end, the last key before it."""
    reason, _, place = message.partition(" (at ")
    numbers = re.fullmatch(r"line (\d+), column (\d+)\)", place)
    lines = text.split("\n")
    line, column = (int(numbers[1]), int(numbers[2])) if numbers else (len(lines), len(lines[-1]) + 1)
    last = locate_keys(text).last_before(line, column)
    if last and not numbers:
        line, column = last.line, last.column
    hint = "a string needs quotes" if "Invalid value" in reason else ""
    key = redact_url(show_key(last.path)) if last else ""
    return Problem(str(path), line, column, key, f"not TOML: {reason}", hint)


def _check_number(path: Path, cameras: object) -> None:
    if isinstance(cameras, list) and len(cameras) > _MOST_CAMERAS:
        message = f"expected at most {_MOST_CAMERAS} cameras, got {len(cameras)}"
        raise ConfigError([Problem(str(path), None, None, "camera", message)])


def _validate(data: dict[str, Any], report: Report) -> _Tables:
    for key in data:
        if key not in TABLES and key != "camera":
            known = [*TABLES, "camera"]
            report.add((key,), "unknown table", suggest(key, known) or f"known tables: {', '.join(known)}")
    cameras = data.get("camera", [])
    if not isinstance(cameras, list) or not cameras:
        report.add(
            ("camera",), "expected at least one [[camera]]", 'the simplest: name = "demo", source = "synthetic:"'
        )
        cameras = []
    return _Tables(
        service=report.validate(ServiceTable, data.get("service", {}), ("service",)),
        publish=report.validate(PublishTable, data.get("publish", {}), ("publish",)),
        model=report.validate(ModelTable, data.get("model", {}), ("model",)),
        stream=report.validate(StreamTable, data.get("stream", {}), ("stream",)),
        cameras=tuple(report.validate(CameraTable, camera, ("camera", n)) for n, camera in enumerate(cameras)),
    )


def _resolve(
    tables: _Tables, directories: Directories, environment: Mapping[str, str], report: Report
) -> ServiceConfig:
    service = tables.service or ServiceTable()
    publish = resolve_publish(tables.publish or PublishTable(), directories, environment, report)
    resolved = resolve_model_table(tables.model, report)
    stream = resolve_stream(tables.stream or StreamTable(), ("stream",), resolved.stream, report)
    cameras = [
        resolve_camera(camera, ("camera", index), stream, environment, report)
        for index, camera in enumerate(tables.cameras)
        if camera is not None
    ]
    report.raise_if_any()
    assert tables.model is not None, "refused tables are among the problems"
    return ServiceConfig(
        log=LogConfig(service.log_level, service.log_format),
        state_dir=Path(service.state_dir) if service.state_dir else directories.state,
        keep_state=service.keep_state,
        runtime_dir=directories.runtime,
        exit_when_done=service.exit_when_done,
        publish=publish,
        model=place_model(resolved.model, tables.model, report),
        cameras=tuple(cameras),
        secrets=frozenset(secret for camera in cameras for secret in secrets_of(camera.source)),
    )


def resolve_model_table(table: ModelTable | None, report: Report) -> ResolvedModel:
    """The model, not placed yet. Where something is wrong already and its preset is of no consequence, any will do."""
    if table is None or report.is_broken(("model", "preset")) or (report.problems and not given(table)):
        return ResolvedModel(ModelConfig(), TINY.stream)
    return resolve_model(table, report)
