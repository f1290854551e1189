"""Writes a loaded config as TOML, with every default filled in and every secret masked."""

import json
from dataclasses import fields
from typing import Any

from retinad.pipeline.config import CameraConfig, ModelConfig, PublishConfig, StreamConfig
from retinad.pipeline.sources.redact import mask
from retinad.pipeline.view_config import ViewConfig

from .service_config import ServiceConfig

Values = dict[str, Any]


def show_config(config: ServiceConfig) -> str:
    """The config as TOML. Keys without a value are comments; passwords in sources are masked."""
    service: Values = {
        "log_level": config.log.level,
        "log_format": config.log.form,
        "state_dir": str(config.state_dir),
        "keep_state": config.keep_state,
        "keep_state_timeout_s": config.keep_state_timeout_s,
        "keep_state_max_age_s": config.keep_state_max_age_s,
        "exit_when_done": config.exit_when_done,
    }
    tables = [_table("[service]", service), *_publish_tables(config.publish), _table("[model]", _model(config.model))]
    return "\n".join(tables + [_table("[[camera]]", _camera(camera)) for camera in (*config.cameras, *config.disabled)])


def _publish_tables(publish: PublishConfig) -> list[str]:
    values = _values_of(publish)
    curve = values.pop("curve")
    tables = [_table("[publish]", values)]
    return [*tables, _table("[publish.curve]", _values_of(curve))] if curve else tables


def _model(model: ModelConfig) -> Values:
    values = _values_of(model)
    preset, network, output = values.pop("name"), _values_of(values.pop("network")), _values_of(values.pop("output"))
    for shape in ("camera_head", "dense_head", "horizon"):  # given by the preset alone
        del network[shape]
    return {"preset": preset, **values, "output_dtype": output.pop("dtype"), **output, **network}


def _camera(camera: CameraConfig) -> Values:
    values = _values_of(camera) | {"source": mask(camera.source, camera.source), "stream": _stream(camera.stream)}
    view: ViewConfig = values.pop("view")
    return values | _view(view)


def _view(view: ViewConfig) -> Values:
    ignored = None if view.mask is None else view.mask.file or view.mask.polygons
    return {
        "intrinsics": None if view.calibration is None else view.calibration.file,
        "mask": ignored,
        "mask_fill": view.mask_fill,
        "metres_per_unit": view.metres_per_unit,
        "known_distance": None if view.known_distance is None else _values_of(view.known_distance),
    }


def _stream(stream: StreamConfig) -> Values:
    values = _values_of(stream)
    return values | _values_of(values.pop("retention"))


def _values_of(config: object) -> Values:
    return {field.name: getattr(config, field.name) for field in fields(config)}  # type: ignore[arg-type]


def _table(header: str, values: Values) -> str:
    lines = [f"{key} = {_toml(value)}" if value is not None else f"# {key} is not set" for key, value in values.items()]
    return "\n".join([header, *lines, ""])


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case tuple():
            return f"[{', '.join(_toml(item) for item in value)}]"
        case dict():
            return f"{{ {', '.join(f'{key} = {_toml(item)}' for key, item in value.items())} }}"
        case _:
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
