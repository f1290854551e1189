"""The tables of the config file as pydantic models: keys, types and ranges. Used only while a config is loaded.

Defaults are not repeated here: a key that is not set keeps the default of the pipeline's dataclass.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from retinad.pipeline.config import (
    CaptureMode,
    DType,
    ExecutionName,
    FlashInferKernels,
    MemoryDType,
    MixerName,
    ResizeMode,
    RtspTransport,
)
from retinad.pipeline.frames import OutputKind, TokenGroup
from retinad.pipeline.model.backbones import BACKBONES
from retinad.pipeline.model.presets import PRESETS
from retinad.pipeline.view_config import MaskFill

from ..logs.render import LogForm
from ..logs.setup import LogLevel

STRICT = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Seconds = Annotated[float, Field(ge=0.1, le=86_400)]
Pixels = Annotated[int, Field(ge=1, le=65_536)]

_TEXT = r"\A[^\x00-\x1f\x7f]{1,4096}\z"
NAME_PATTERN = r"\A[A-Za-z0-9_-]{1,64}\z"
_DEVICE = r"\A(auto|cpu|cuda(:[0-9]{1,2})?)\z"
_FOURCC = r"\A[ -~]{4}\z"
PATTERN_WORDS = {
    _TEXT: "1 to 4096 characters, none of them a control character",
    NAME_PATTERN: "1 to 64 characters of A-Z a-z 0-9 _ -",
    _DEVICE: "auto, cpu, cuda or cuda:N",
    _FOURCC: "four ASCII characters, such as MJPG",
}
"""For each pattern, the expected form of the string in words."""

WORD_PATTERNS = frozenset({NAME_PATTERN, _DEVICE, _FOURCC})
"""Patterns of keys whose value is a single word, which an error message may quote."""

LONGEST = MappingProxyType({_TEXT: 4096, NAME_PATTERN: 64})
"""Maximum number of characters of strings with these patterns."""

Text = Annotated[str, Field(pattern=_TEXT)]
Outputs = Annotated[list[Annotated[OutputKind, Field(strict=False)]], Field(min_length=1)]

if TYPE_CHECKING:
    PresetName = str
    BackboneName = str
else:  # the names of the registries
    PresetName = Literal["auto", *PRESETS]
    BackboneName = Literal[*BACKBONES]


def _index_as_text(source: object) -> object:
    return str(source) if isinstance(source, int) and not isinstance(source, bool) and 0 <= source < 1000 else source


class ServiceTable(BaseModel):
    """The keys of the table `[service]`."""

    model_config = STRICT
    log_level: LogLevel = "info"
    log_format: LogForm = "auto"
    state_dir: Text | None = None
    keep_state: bool = False
    keep_state_timeout_s: Seconds = 30.0
    keep_state_max_age_s: Annotated[float, Field(ge=0.1, le=31_536_000)] | None = None
    exit_when_done: bool = True


class CurveTable(BaseModel):
    """The keys of the table `[publish.curve]`."""

    model_config = STRICT
    server_secret_key_file: Text
    authorized_keys_dir: Text


class PublishTable(BaseModel):
    """The keys of the table `[publish]`."""

    model_config = STRICT
    endpoints: Annotated[list[Text], Field(min_length=1, max_length=16)] | None = None
    buffer_mb: Annotated[int, Field(ge=1, le=65_536)] | None = None
    heartbeat_s: Seconds | None = None
    allow_plaintext: bool | None = None
    locate_endpoint: Text | None = None
    curve: CurveTable | None = None


class ModelTable(BaseModel):
    """The keys of the table `[model]`."""

    model_config = STRICT
    preset: PresetName = "auto"
    checkpoint: Text | None = None
    backbone_checkpoint: Text | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    device: Annotated[str, Field(pattern=_DEVICE)] = "auto"
    dtype: Literal["auto", DType] = "auto"
    attention: Literal["auto", "triton", "dense", "flashinfer"] = "auto"
    execution: ExecutionName | None = None
    memory_dtype: MemoryDType | None = None
    flashinfer_kernels: Literal["auto", FlashInferKernels] | None = None
    max_batch: Annotated[int, Field(ge=1, le=1024)] | None = None
    max_streams: Annotated[int, Field(ge=1, le=1024)] | None = None
    step_timeout_s: Seconds | None = None
    image_width: Pixels | None = None
    outputs: Outputs | None = None
    map_stride: Annotated[int, Field(ge=1, le=64)] | None = None
    min_confidence: Annotated[float, Field(ge=0, le=65_504)] | None = None
    map_every: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    layers: Annotated[list[Annotated[int, Field(ge=0, le=999)]], Field(min_length=1)] | None = None
    tokens: Annotated[list[Annotated[TokenGroup, Field(strict=False)]], Field(min_length=1)] | None = None
    pool: Annotated[int, Field(ge=1, le=1024)] | None = None
    output_dtype: DType | None = None
    channels: Annotated[int, Field(ge=4, le=16_384)] | None = None
    heads: Annotated[int, Field(ge=1, le=1024)] | None = None
    depth: Annotated[int, Field(ge=0, le=1000)] | None = None
    mlp_ratio: Annotated[float, Field(gt=0, le=64)] | None = None
    patch_size: Annotated[int, Field(ge=1, le=256)] | None = None
    patch_embed: BackboneName | None = None
    register_tokens: Annotated[int, Field(ge=0, le=64)] | None = None
    rope3d: bool | None = None
    mixers: Annotated[list[MixerName], Field(min_length=1, max_length=1000)] | None = None


class StreamTable(BaseModel):
    """The table `[stream]`, and the table `stream` of a `[[camera]]`, whose keys override it."""

    model_config = STRICT
    scale_frames: Count | None = None
    window: Count | None = None
    keyframe_interval: Count | None = None
    keyframe_flow_px: Annotated[float, Field(ge=0, le=100_000)] | None = None
    history_frames: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    epoch_frames: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    run_frames: Annotated[int, Field(ge=1, le=1024)] | None = None
    carry_state: bool | None = None
    cross_frame_special: bool | None = None
    camera_only: bool | None = None
    include_scale_frames: bool | None = None


class DistanceTable(BaseModel):
    """The table `known_distance` of a `[[camera]]`."""

    model_config = STRICT
    metres: Annotated[float, Field(gt=0, le=1_000_000)]
    from_s: Annotated[float, Field(ge=0, le=86_400)]
    to_s: Annotated[float, Field(gt=0, le=86_400)]


_Coordinate = Annotated[float, Field(ge=-65_536, le=65_536)]
_Corner = Annotated[list[_Coordinate], Field(min_length=2, max_length=2)]
_Polygon = Annotated[list[_Corner], Field(max_length=1000)]
Polygons = Annotated[list[_Polygon], Field(min_length=1, max_length=1000)]


class CameraTable(BaseModel):
    """The keys of one table `[[camera]]`."""

    model_config = STRICT
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    source: Annotated[SecretStr, BeforeValidator(_index_as_text)]
    mode: Annotated[CaptureMode, Field(strict=False)] | None = None
    fps: Annotated[float, Field(ge=0.001, le=1000)] | None = None
    loop: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    resize: Annotated[ResizeMode, Field(strict=False)] | None = None
    queue_frames: Annotated[int, Field(ge=1, le=1000)] | None = None
    connect_timeout_s: Seconds | None = None
    stall_timeout_s: Seconds | None = None
    retry: bool | None = None
    transport: RtspTransport | None = None
    size: Annotated[list[Pixels], Field(min_length=2, max_length=2)] | None = None
    fourcc: Annotated[str, Field(pattern=_FOURCC)] | None = None
    crop: Annotated[list[Annotated[int, Field(ge=0, le=65_536)]], Field(min_length=4, max_length=4)] | None = None
    enabled: bool | None = None
    outputs: Outputs | None = None
    intrinsics: Text | None = None
    mask: Text | Polygons | None = None
    mask_fill: Annotated[MaskFill, Field(strict=False)] | None = None
    metres_per_unit: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    known_distance: DistanceTable | None = None
    stream: StreamTable | None = None


TABLES: Mapping[str, type[BaseModel]] = MappingProxyType(
    {"service": ServiceTable, "publish": PublishTable, "model": ModelTable, "stream": StreamTable}
)
"""The tables that a file has once; besides them there is only `[[camera]]`. Read-only."""


def sub_table(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The model of the table under a key, or None if the key holds a plain value."""
    annotation = model.model_fields[key].annotation
    for kind in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def configured_keys(table: BaseModel) -> dict[str, Any]:
    """The keys that the file sets and their values, for `dataclasses.replace` on the defaults. Lists become tuples."""
    values = {key: getattr(table, key) for key in table.model_fields_set}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
