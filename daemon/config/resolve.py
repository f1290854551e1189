"""Fills the pipeline's frozen configs from the checked tables, and checks what one table alone cannot tell."""

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from retinad.pipeline.config import CameraConfig, CurveConfig, PublishConfig, RetentionConfig, StreamConfig
from retinad.pipeline.errors import PublishError, SourceError
from retinad.pipeline.publish.endpoints import check_endpoints
from retinad.pipeline.sources.redact import mask
from retinad.pipeline.sources.registry import parse_source

from .directories import Directories
from .environment import CREDENTIAL, find_credential, read_credential
from .errors import KeyPath
from .problems import Report
from .tables import CameraTable, CurveTable, PublishTable, StreamTable

DEFAULT_ENDPOINTS = ("ipc://{runtime}/features.sock", "tcp://127.0.0.1:5555")
"""`{runtime}` stands for the runtime directory."""


def given(table: BaseModel) -> dict[str, Any]:
    """The keys that the file gives, lists as tuples, to go over the defaults with `dataclasses.replace`."""
    values = {key: getattr(table, key) for key in table.model_fields_set}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def resolve_publish(
    table: PublishTable, directories: Directories, environment: Mapping[str, str], report: Report
) -> PublishConfig:
    """`[publish]` with the endpoints written out; what is wrong goes to the report."""
    raw = tuple(table.endpoints) if table.endpoints else DEFAULT_ENDPOINTS
    endpoints = tuple(endpoint.replace("{runtime}", str(directories.runtime)) for endpoint in raw)
    curve = _resolve_curve(table.curve, environment, report) if table.curve else None
    publish = replace(PublishConfig(), **(given(table) | {"endpoints": endpoints, "curve": curve}))
    for index, endpoint in enumerate(endpoints):
        _check_endpoint(endpoint, ("publish", "endpoints", index), publish, report)
        if endpoint in endpoints[:index]:
            report.add(("publish", "endpoints", index), "the same endpoint stands twice")
    return publish


def resolve_stream(table: StreamTable, path: KeyPath, default: StreamConfig, report: Report) -> StreamConfig:
    """A stream's config: what the table gives, else the default. What is wrong goes to the report."""
    keys = given(table)
    retention = {item.name: keys.pop(item.name) for item in fields(RetentionConfig) if item.name in keys}
    scale_frames = keys.get("scale_frames", default.scale_frames)
    epoch_frames = keys.get("epoch_frames", default.epoch_frames)
    if epoch_frames and epoch_frames <= scale_frames:
        name = "epoch_frames" if "epoch_frames" in keys else "scale_frames"
        report.add((*path, name), f"expected epoch_frames = 0 or more than scale_frames = {scale_frames}")
        keys["epoch_frames"] = 0
    return replace(default, **keys, retention=replace(default.retention, **retention))


def resolve_camera(
    table: CameraTable, path: KeyPath, stream: StreamConfig, environment: Mapping[str, str], report: Report
) -> CameraConfig:
    """One `[[camera]]`; `stream` is what it inherits. What is wrong goes to the report."""
    source = _resolve_source(table.source.get_secret_value(), (*path, "source"), environment, report)
    own_stream = resolve_stream(table.stream, (*path, "stream"), stream, report) if table.stream else stream
    camera = replace(CameraConfig(table.name, source), **(given(table) | {"source": source, "stream": own_stream}))
    # A live camera gives its newest frame alone: room for more would stand empty.
    return replace(camera, stream=replace(camera.stream, run_frames=camera.frames_per_step))


def check_names(cameras: object, report: Report) -> None:
    """Note camera names that stand twice: in what was read, so that a camera with other faults counts too."""
    seen: set[str] = set()
    for index, camera in enumerate(cameras if isinstance(cameras, list) else []):
        name = camera.get("name") if isinstance(camera, dict) else None
        if isinstance(name, str):
            if name in seen:
                report.add(("camera", index, "name"), "another camera has the same name")
            seen.add(name)


def _resolve_source(source: str, path: KeyPath, environment: Mapping[str, str], report: Report) -> str:
    try:
        text = read_credential(source, environment) if source.startswith(CREDENTIAL) else source
        if len(text) > 4096 or any(ord(character) < 32 for character in text):
            raise ValueError("expected 1 to 4096 characters, none of them a control character")
        if any("\ud800" <= character <= "\udfff" for character in text):  # how Python spells a variable's odd bytes
            raise ValueError("expected UTF-8 text")
        parse_source(text)
    except (ValueError, SourceError) as error:
        report.add(path, str(error))  # neither shows any of a source with secrets
    else:
        return text
    return source


def _resolve_curve(table: CurveTable, environment: Mapping[str, str], report: Report) -> CurveConfig:
    key_file, clients = Path(table.server_secret_key_file), Path(table.authorized_keys_dir)
    if table.server_secret_key_file.startswith(CREDENTIAL):
        try:
            key_file = find_credential(table.server_secret_key_file, environment)
        except ValueError as error:
            report.add(("publish", "curve", "server_secret_key_file"), str(error))
    elif not os.path.isfile(key_file):  # Path.is_file raises where a folder may not be entered
        report.add(("publish", "curve", "server_secret_key_file"), "there is no such file, or it cannot be reached")
    if not os.path.isdir(clients):
        report.add(("publish", "curve", "authorized_keys_dir"), "there is no such folder, or it cannot be reached")
    return CurveConfig(key_file, clients)


def _check_endpoint(endpoint: str, path: KeyPath, publish: PublishConfig, report: Report) -> None:
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65_535):
        report.add(path, "expected tcp://ADDRESS:PORT with a port of 1 to 65535")
        return
    try:
        check_endpoints(replace(publish, endpoints=(endpoint,)))
    except PublishError as error:
        report.add(path, mask(str(error), endpoint))
