"""Loads a config file in four steps, each of which returns all its problems: parse, merge, validate and resolve.

After these steps, the model is placed on its device.

This is one of the files that read the process's environment.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from retinad.pipeline.config import ModelConfig
from retinad.pipeline.errors import ModelError
from retinad.pipeline.model.placement import CARD

from .errors import ConfigError, Problem
from .merge import merge
from .model import place_model
from .parse import Document, parse
from .problems import Origins
from .resolve import resolve_publishing, resolve_service
from .service_config import LogConfig, Publishing, ServiceConfig
from .service_links import describe_links
from .tables import ModelTable
from .validate import validate

__all__ = [
    "ConfigError",
    "LogConfig",
    "Problem",
    "Publishing",
    "ServiceConfig",
    "load_config",
    "load_publishing",
    "place",
    "read_document",
]


def load_config(
    source: Path | Document, environment: Mapping[str, str] = os.environ, *, for_card: bool = False
) -> ServiceConfig:
    """Load the service's config.

    Args:
        source: the TOML file, or its parsed form (see `read_document`).
        environment: variables `RETINAD_<TABLE>__<KEY>`, each of which overrides a key, and those that systemd sets for
            directories and credentials.
        for_card: whether the model is for a GPU that need not be in this machine, whatever `device` is.

    Raises:
        ConfigError: something is wrong; the error lists all of it.
        ModelError: the config is correct, but the device that it names or needs does not exist.
    """
    document = read_document(source) if isinstance(source, Path) else source
    merged = merge(document.data, environment)
    tables = validate(merged.data)
    if for_card:
        tables = replace(tables, model=tables.model.model_copy(update={"device": CARD}))
    resolved = resolve_service(tables, environment, is_refused=bool(merged.problems or tables.faults))
    origins = Origins(document.file, document.places, merged.overrides)
    origins.refuse((*tables.faults, *resolved.faults), merged.problems)
    notes = (describe_links(merged.links),) if merged.links else ()
    return replace(
        resolved.config,
        model=place(resolved.config.model, tables.model, origins),
        notes=(*notes, *resolved.config.notes),
    )


def load_publishing(document: Document, environment: Mapping[str, str] = os.environ) -> Publishing | None:
    """Load, without torch, the part of a config that says where records are published.

    Returns:
        None if anything is wrong with the tables; `load_config` reports all of it.
    """
    merged = merge(document.data, environment)
    tables = validate(merged.data)
    resolved = resolve_publishing(tables, environment)
    return None if merged.problems or tables.faults or resolved.faults else resolved.config


def read_document(path: Path) -> Document:
    """Parse a config file.

    Raises:
        ConfigError: the file cannot be read, or is not TOML.
    """
    parsed = parse(path)
    if isinstance(parsed, Problem):
        raise ConfigError([parsed])
    return parsed


def place(model: ModelConfig, table: ModelTable, origins: Origins) -> ModelConfig:
    """Put a model on its device, after all other checks, since this imports torch.

    Raises:
        ConfigError: the model's settings are incompatible with the device.
        ModelError: the configured device does not exist, or `auto` found no GPU and the model cannot run without one.
    """
    placed, faults = place_model(model, table)
    try:
        origins.refuse(faults)
    except ConfigError as error:
        if table.device == "auto" and placed.device == "cpu":  # a GPU may be found at the next attempt
            raise ModelError(f"device = 'auto' found no CUDA device: {error}") from error
        raise
    return placed
