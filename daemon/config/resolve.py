"""Step 4 of loading a config, resolve: turns checked tables into complete configs of the pipeline.

It fills in defaults and presets, and checks what cannot be checked in a single table: values that depend on each
other, files that must exist, and credentials.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Generic, TypeVar

from retinad.client.curve_keys import KeyFileError, load_keys
from retinad.pipeline.config import CameraConfig, CurveConfig, ModelConfig, PublishConfig, RetentionConfig, StreamConfig
from retinad.pipeline.errors import PublishError, SourceError
from retinad.pipeline.files.ownership import NotOursError
from retinad.pipeline.frames import MOTION_KINDS, OutputKind
from retinad.pipeline.model.presets import PRESETS
from retinad.pipeline.publish.authorized_keys import load_authorized_key
from retinad.pipeline.publish.endpoints import check_endpoints, ipc_path, is_same_socket
from retinad.pipeline.publish.secret_key import secret_key_note
from retinad.pipeline.sources.crop import crop_fault
from retinad.pipeline.sources.redact import mask, secrets_of
from retinad.pipeline.sources.registry import parse_source

from .credentials import CREDENTIAL, find_credential, read_credential
from .directories import find_directories
from .keys import KeyPath
from .model import ResolvedModel, resolve_model, stand_in
from .problems import KeyFault
from .service_config import JobConfig, LogConfig, Publishing, ServiceConfig
from .tables import CameraTable, CurveTable, PublishTable, StreamTable, configured_keys
from .validate import Tables
from .view import VIEW_KEYS, resolve_view
from .windows import window_stream_faults

Config = TypeVar("Config")

DEFAULT_ENDPOINTS = ("ipc://{runtime}/features.sock", "tcp://127.0.0.1:5555")
"""`{runtime}` is replaced by the runtime directory."""


_ALL_DISABLED = KeyFault(("camera",), "every camera is disabled", "remove `enabled = false` from one")


@dataclass(frozen=True, slots=True)
class Resolved(Generic[Config]):
    """A resolved config and its faults.

    Attributes:
        config: the config. Its model, if it has one, is not placed yet: see `place_model`.
        faults: all faults that were found; the config must only be used if there are none.
    """

    config: Config
    faults: tuple[KeyFault, ...]


def resolve_service(tables: Tables, environment: Mapping[str, str], *, is_refused: bool) -> Resolved[ServiceConfig]:
    """Resolve the whole service.

    Args:
        tables: the checked tables.
        environment: systemd's and XDG's directories, and credentials.
        is_refused: whether an earlier step has found a problem, so that only the faults of the result are used.
    """
    directories, service = find_directories(environment), tables.service
    publishing = resolve_publishing(tables, environment)
    model = _resolve_model(tables, is_refused=is_refused or bool(publishing.faults))
    stream, stream_faults = resolve_stream(tables.stream, ("stream",), model.stream, windows=model.has_windows)
    cameras = [
        resolve_camera(camera, ("camera", number), stream, environment, model)
        for number, camera in tables.cameras.items()
    ]
    enabled = tuple(camera for camera, _ in cameras if camera.enabled)
    config = ServiceConfig(
        log=LogConfig(service.log_level, service.log_format),
        state_dir=Path(service.state_dir) if service.state_dir else directories.state,
        keep_state=service.keep_state,
        keep_state_timeout_s=service.keep_state_timeout_s,
        keep_state_max_age_s=service.keep_state_max_age_s,
        runtime_dir=publishing.config.runtime_dir,
        exit_when_done=service.exit_when_done,
        publish=publishing.config.publish,
        model=model.model,
        cameras=enabled,
        disabled=tuple(camera for camera, _ in cameras if not camera.enabled),
        secrets=frozenset(secret for camera, _ in cameras for secret in secrets_of(camera.source)),
        notes=(*_preset_notes(model.model.name), *_key_notes(publishing.config.publish.curve)),
    )
    camera_faults, motion_faults = [fault for _, faults in cameras for fault in faults], list[KeyFault]()
    for number, (camera, _) in zip(tables.cameras, cameras, strict=True):
        camera_faults += _output_faults(camera, ("camera", number), model)
        own = tables.cameras[number].stream
        is_own = own is not None and own.keyframe_flow_px is not None
        path: KeyPath = ("camera", number, "stream") if is_own else ("stream",)
        motion_faults += _motion_faults(camera.stream, path, camera.outputs or model.model.outputs)
    if cameras and not enabled:
        camera_faults.append(_ALL_DISABLED)
    camera_faults += [*dict.fromkeys(motion_faults), *_locate_faults(publishing.config.publish, model.model)]
    faults = tables.independent((*model.faults, *stream_faults, *camera_faults))
    return Resolved(config, (*publishing.faults, *faults))


def resolve_publishing(tables: Tables, environment: Mapping[str, str]) -> Resolved[Publishing]:
    """Resolve where the service publishes, which needs no model."""
    runtime = find_directories(environment).runtime
    publish, faults = _resolve_publish(tables.publish, runtime, environment)
    return Resolved(Publishing(publish, runtime), tables.independent(faults))


def resolve_job(tables: Tables, *, is_refused: bool) -> Resolved[JobConfig]:
    """Resolve a job without cameras. The arguments are those of `resolve_service`."""
    model = _resolve_model(tables, is_refused=is_refused)
    stream, stream_faults = resolve_stream(tables.stream, ("stream",), model.stream, windows=model.has_windows)
    faults = (*model.faults, *stream_faults, *_motion_faults(stream, ("stream",), model.model.outputs))
    return Resolved(JobConfig(model.model, stream, model.resize), tables.independent(faults))


def resolve_stream(
    table: StreamTable, path: KeyPath, default: StreamConfig, *, windows: bool = False
) -> tuple[StreamConfig, tuple[KeyFault, ...]]:
    """Override a stream's defaults with the keys of a table. `windows`: the network runs window by window."""
    keys, faults = configured_keys(table), list[KeyFault]()
    if windows:
        window = keys.get("window", default.window)
        refused = dict(window_stream_faults(keys, window))
        faults += [KeyFault((*path, key), reason) for key, reason in refused.items()]
        keys = {key: value for key, value in keys.items() if key not in refused} | {"scale_frames": window}
    retention = {item.name: keys.pop(item.name) for item in fields(RetentionConfig) if item.name in keys}
    scale_frames = keys.get("scale_frames", default.scale_frames)
    epoch_frames = keys.get("epoch_frames", default.epoch_frames)
    if epoch_frames and epoch_frames <= scale_frames:
        name = "epoch_frames" if "epoch_frames" in keys else "scale_frames"
        expected = f"expected epoch_frames = 0 or more than scale_frames = {scale_frames}"
        faults.append(KeyFault((*path, name), expected))
        keys["epoch_frames"] = 0
    interval = keys.get("keyframe_interval", default.keyframe_interval)
    if keys.get("keyframe_flow_px", default.keyframe_flow_px) and interval == 1:
        name = "keyframe_flow_px" if "keyframe_flow_px" in keys else "keyframe_interval"
        reason = "with keyframe_flow_px, expected keyframe_interval > 1, the most frames from one keyframe to the next"
        faults.append(KeyFault((*path, name), reason, "set, for example, keyframe_interval = 30"))
    return replace(default, **keys, retention=replace(default.retention, **retention)), tuple(faults)


def resolve_camera(
    table: CameraTable,
    path: KeyPath,
    stream: StreamConfig,
    environment: Mapping[str, str],
    model: ResolvedModel,
) -> tuple[CameraConfig, tuple[KeyFault, ...]]:
    """Resolve one `[[camera]]`; `stream` has the settings of `[stream]`, which the camera inherits."""
    source, faults = table.source.get_secret_value(), []
    try:
        source = _resolve_source(source, environment)
    except (ValueError, SourceError) as error:  # neither message quotes the source, which may contain secrets
        faults.append(KeyFault((*path, "source"), str(error)))
    if table.stream:
        stream, stream_faults = resolve_stream(table.stream, (*path, "stream"), stream, windows=model.has_windows)
        faults += stream_faults
    view, view_faults = resolve_view(table, path)
    faults += view_faults
    keys = {key: value for key, value in configured_keys(table).items() if key not in VIEW_KEYS}
    camera = replace(
        CameraConfig(table.name, source, resize=model.resize),
        **(keys | {"source": source, "stream": stream, "view": view}),
    )
    faults += [KeyFault((*path, "crop"), reason) for reason in _crop_faults(camera)]
    # A live camera delivers its newest frame only: room for more would stay empty.
    stream = replace(camera.stream, run_frames=camera.frames_per_step)
    return replace(camera, stream=stream), tuple(faults)


def _output_faults(camera: CameraConfig, path: KeyPath, model: ResolvedModel) -> Iterator[KeyFault]:
    chosen, known = camera.outputs or (), model.model.outputs
    if len(set(chosen)) != len(chosen):
        yield KeyFault((*path, "outputs"), "expected each kind at most once")
    if missing := [kind.value for kind in chosen if kind not in known]:
        reason = f"expected some of model.outputs ({', '.join(known)}), got {', '.join(missing)}"
        yield KeyFault((*path, "outputs"), reason, "add it to model.outputs, so that its head is loaded")


def _locate_faults(publish: PublishConfig, model: ModelConfig) -> Iterator[KeyFault]:
    if publish.locate_endpoint is not None and OutputKind.POSE not in model.outputs:
        reason = f"needs the output pose, got {', '.join(model.outputs)}"
        yield KeyFault(("publish", "locate_endpoint"), reason, "add pose to model.outputs, or remove this key")
    if publish.locate_endpoint is not None and model.network.horizon is not None:
        reason = f"the preset {model.name} cannot locate pictures: it estimates poses within a window of frames only"
        yield KeyFault(("publish", "locate_endpoint"), reason, "remove this key")


def _motion_faults(stream: StreamConfig, path: KeyPath, outputs: Collection[OutputKind]) -> Iterator[KeyFault]:
    # `path` is that of the table that sets the key.
    if stream.keyframe_flow_px and (missing := sorted(MOTION_KINDS.difference(outputs))):
        reason = f"needs the outputs pose and depth, got {', '.join(outputs)}"
        yield KeyFault((*path, "keyframe_flow_px"), reason, f"add {' and '.join(missing)} to `outputs`, or set it to 0")


def _crop_faults(camera: CameraConfig) -> Iterator[str]:
    if camera.crop is None:
        return
    left, top, width, height = camera.crop
    if not (width and height):
        yield "expected [left, top, width, height] with a width and height of at least 1"
        return
    try:
        size = parse_source(camera.source).frame_size
    except SourceError:  # the fault is reported for the key `source`
        return
    if size is not None and (left + width > size[0] or top + height > size[1]):
        yield crop_fault(camera.crop, size)


def _resolve_model(tables: Tables, *, is_refused: bool) -> ResolvedModel:
    # The preset `auto` looks for a GPU, which imports torch and takes a second. A config that is refused anyway skips
    # this if no key of `[model]` is set that would have to be checked against the preset.
    is_preset_known = not tables.is_left_out(("model", "preset"))
    if not is_preset_known or (is_refused and not configured_keys(tables.model)):
        return stand_in()
    return resolve_model(tables.model, is_complete=not any(path[0] == "model" for path in tables.left_out))


def _resolve_publish(
    table: PublishTable, runtime: Path, environment: Mapping[str, str]
) -> tuple[PublishConfig, tuple[KeyFault, ...]]:
    templates = tuple(table.endpoints) if table.endpoints else DEFAULT_ENDPOINTS
    endpoints = tuple(endpoint.replace("{runtime}", str(runtime)) for endpoint in templates)
    curve, faults = _resolve_curve(table.curve, environment) if table.curve else (None, [])
    locate = table.locate_endpoint.replace("{runtime}", str(runtime)) if table.locate_endpoint else None
    found = {"endpoints": endpoints, "curve": curve, "locate_endpoint": locate}
    publish = replace(PublishConfig(), **(configured_keys(table) | found))
    return publish, (*faults, *_check_endpoints(publish, runtime))


def _resolve_curve(table: CurveTable, environment: Mapping[str, str]) -> tuple[CurveConfig, list[KeyFault]]:
    key_file, clients, faults = Path(table.server_secret_key_file), Path(table.authorized_keys_dir), []
    key_path: KeyPath = ("publish", "curve", "server_secret_key_file")
    if table.server_secret_key_file.startswith(CREDENTIAL):
        try:
            key_file = find_credential(table.server_secret_key_file, environment)
        except ValueError as error:
            faults.append(KeyFault(key_path, str(error)))
    elif not os.path.isfile(key_file):  # Path.is_file raises if a folder may not be entered
        faults.append(KeyFault(key_path, "there is no such file, or it cannot be reached"))
    if not faults:
        try:
            _ = load_keys(key_file).secret_key
        except KeyFileError as error:
            faults.append(KeyFault(key_path, str(error)))
    if not os.path.isdir(clients):
        path = ("publish", "curve", "authorized_keys_dir")
        faults.append(KeyFault(path, "there is no such folder, or it cannot be reached"))
    return CurveConfig(key_file, clients), faults


def _preset_notes(name: str) -> Iterator[str]:
    preset = PRESETS.get(name)
    if preset is not None and preset.note is not None:
        yield f"model.preset {name}: {preset.note}"


def _key_notes(curve: CurveConfig | None) -> Iterator[str]:
    if curve is None:
        return
    if (note := secret_key_note(curve.server_secret_key_file)) is not None:
        yield note
    folder = curve.authorized_keys_dir
    if not os.path.isdir(folder):
        return
    for file in sorted(folder.glob("*.key")):
        try:
            _ = load_authorized_key(file).public_key
        except (KeyFileError, NotOursError) as error:
            yield f"a client's key is ignored, so this client cannot subscribe: {error}"


def _check_endpoints(publish: PublishConfig, runtime: Path) -> Iterator[KeyFault]:
    for number, endpoint in enumerate(publish.bound):
        is_listed = number < len(publish.endpoints)
        path: KeyPath = ("publish", "endpoints", number) if is_listed else ("publish", "locate_endpoint")
        reason = _endpoint_fault(endpoint, publish) or _socket_fault(endpoint, runtime)
        if reason is not None:
            yield KeyFault(path, reason)
            continue
        for other in publish.bound[:number]:
            if endpoint == other:
                yield KeyFault(path, "this endpoint is listed twice" if is_listed else "`endpoints` lists it too")
            elif _endpoint_fault(other, publish) is None and is_same_socket(endpoint, other):
                yield KeyFault(path, f"{endpoint} and {other} are the same socket, or one covers the other: keep one")


def _endpoint_fault(endpoint: str, publish: PublishConfig) -> str | None:
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65_535):
        return "expected tcp://ADDRESS:PORT with a port of 1 to 65535"
    try:
        check_endpoints(replace(publish, endpoints=(endpoint,), locate_endpoint=None))
    except PublishError as error:
        return mask(str(error), endpoint)
    return None


def _socket_fault(endpoint: str, runtime: Path) -> str | None:
    socket = ipc_path(endpoint)
    if socket is None or socket.startswith("@"):
        return None
    folder = Path(socket).parent
    if folder == runtime:  # the service creates this folder itself
        return None
    advice = "write ipc://{runtime}/NAME.sock to use a folder that the service makes"
    if not os.path.isdir(folder):
        return f"there is no folder {folder} for the socket: make it, or {advice}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"this user may not make files in {folder}: change its owner or mode, or {advice}"
    if os.path.isdir(socket):
        return f"{socket} is a folder: expected the name of a socket in it"
    return None


def _resolve_source(source: str, environment: Mapping[str, str]) -> str:
    text = read_credential(source, environment) if source.startswith(CREDENTIAL) else source
    if len(text) > 4096 or any(ord(character) < 32 for character in text):
        raise ValueError("expected 1 to 4096 characters, none of them a control character")
    if any("\ud800" <= character <= "\udfff" for character in text):  # how Python represents bytes that are not UTF-8
        raise ValueError("expected UTF-8 text")
    parse_source(text)
    return text
