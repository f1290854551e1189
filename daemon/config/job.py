"""What a command without cameras takes from a config: the model, and what its stream remembers."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from retinad.pipeline.config import ModelConfig, StreamConfig

from .environment import apply_overrides, report_unknown
from .load import parse_toml, read_text, resolve_model_table
from .locations import locate_keys
from .model import place_model
from .problems import Report
from .resolve import resolve_stream
from .tables import ModelTable, StreamTable

_TABLES = ("model", "stream")
_VARIABLES = ("RETINAD_MODEL__", "RETINAD_STREAM__")


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The model, and what a stream of it remembers."""

    model: ModelConfig
    stream: StreamConfig


@dataclass(frozen=True, slots=True)
class Override:
    """A key that the command line sets.

    Attributes:
        name: the option, such as `--preset`.
        table, key: what it sets.
        value: as the file would give it.
    """

    name: str
    table: str
    key: str
    value: object


def load_job_config(
    path: Path | None, options: Sequence[Override], environment: Mapping[str, str] = os.environ
) -> JobConfig:
    """Read `[model]` and `[stream]` of a config; the other tables may hold anything.

    Args:
        path: the TOML file, or None for the defaults.
        options: what the command line gives, over the environment and the file.
        environment: `RETINAD_MODEL__<KEY>` and `RETINAD_STREAM__<KEY>`, each of which overrides a key.

    Raises:
        ConfigError: with everything that is wrong in these tables.
        ModelError: they are right, but the device that they name or need is not there.
    """
    text = "" if path is None else read_text(path)
    file = path or Path("defaults")
    raw = {name: table for name, table in parse_toml(file, text).items() if name in _TABLES}
    variables = {name: value for name, value in environment.items() if name.startswith(_VARIABLES)}
    data, names, unknown = apply_overrides(raw, variables)
    for option in options:
        table = data.setdefault(option.table, {})
        if isinstance(table, dict):
            table[option.key] = option.value
            names[option.table, option.key] = option.name
    report = Report(file, locate_keys(text), names)
    report_unknown(unknown, raw, report)
    table = report.validate(ModelTable, data.get("model", {}), ("model",))
    resolved = resolve_model_table(table, report)
    given = report.validate(StreamTable, data.get("stream", {}), ("stream",)) or StreamTable()
    stream = resolve_stream(given, ("stream",), resolved.stream, report)
    report.raise_if_any()
    assert table is not None, "a refused table is among the problems"
    return JobConfig(place_model(resolved.model, table, report), stream)
