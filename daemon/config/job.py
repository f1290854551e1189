"""Loads the config of a job without cameras: the model, and the settings of its one stream.

This is one of the files that read the process's environment.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .load import place, read_document
from .merge import Override, merge
from .parse import Document
from .problems import Origins
from .resolve import resolve_job
from .service_config import JobConfig
from .validate import validate

__all__ = ["JobConfig", "Override", "load_job_config"]

_TABLES = ("model", "stream")


def load_job_config(
    path: Path | None, options: Sequence[Override], environment: Mapping[str, str] = os.environ
) -> JobConfig:
    """Load `[model]` and `[stream]` of a config; the other tables are ignored.

    Args:
        path: the TOML file, or None for the defaults.
        options: keys that the command line sets; they override the environment and the file.
        environment: variables `RETINAD_MODEL__<KEY>` and `RETINAD_STREAM__<KEY>`, each of which overrides a key.

    Raises:
        ConfigError: something in these tables is wrong; the error lists all of it.
        ModelError: the tables are correct, but the device that they name or need does not exist.
    """
    document = Document(Path("defaults")) if path is None else read_document(path)
    merged = merge(document.data, environment, options, only=_TABLES)
    tables = validate(merged.data, cameras=False)
    resolved = resolve_job(tables, is_refused=bool(merged.problems or tables.faults))
    origins = Origins(document.file, document.places, merged.overrides)
    origins.refuse((*tables.faults, *resolved.faults), merged.problems)
    return replace(resolved.config, model=place(resolved.config.model, tables.model, origins))
