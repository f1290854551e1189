"""The index of an extracted recording, `index.json`: feature files (shards), settings, and where to resume."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from retinad.pipeline.config import OutputConfig, ResizeMode, StreamConfig
from retinad.pipeline.config_diff import differences
from retinad.pipeline.engine.checkpoint import ModelIdentity
from retinad.pipeline.files.atomic import written_whole
from retinad.pipeline.frames import Affine, Flag, Geometry, OutputKind, Size, TokenGroup

from ..config.keys import show_differences
from ..exit_codes import ExitCode, JobError

SCHEMA = 1
"""Version of the index format."""

INDEX = "index.json"

Form = Literal["safetensors", "npz"]
FORMS = ("safetensors", "npz")


class DamagedIndex(Exception):
    """An index cannot be read, or its files are damaged; the message says why."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that must match for a job to resume.

    Attributes:
        source: the recording, an absolute path or a URL with passwords masked.
        resize: how images are resized for the model.
        image_width: width of the resized images in pixels.
        model_name: the preset.
        model: weights, network and dtype.
        output: which features are written, and the form of depths and points.
        stream: the stream's memory settings.
        form: file format of the shards.
        outputs: the kinds of outputs that are written. Earlier versions wrote features only.
    """

    source: str
    resize: ResizeMode
    image_width: int
    model_name: str
    model: ModelIdentity
    output: OutputConfig
    stream: StreamConfig
    form: Form
    outputs: tuple[OutputKind, ...] = (OutputKind.FEATURES,)


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor in a shard. Its first axis counts the shard's frames; `shape` has the other axes.

    `layer` and `group` are None if the tensor holds no tokens. `dtype` is float16, float32 or bfloat16; in an `.npz`,
    bfloat16 numbers are stored as their raw bits, in uint16.
    """

    name: str
    layer: int | None
    group: TokenGroup | None
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """One frame of a shard, in the order of its rows, with the field names of the service's messages.

    `frame` is the frame's number among those with features, from 0. `file` is the frame's image file if the recording
    is a folder or a glob, otherwise None.
    """

    frame: int
    source_seq: int
    pts_ns: int | None
    epoch: int
    epoch_frame: int
    keyframe: bool
    flags: tuple[Flag, ...]
    file: str | None = None


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One file of features. All its frames have the same size and the same geometry.

    `geometry` says what poses, depths and points mean, as in the service's messages; None without them.
    """

    file: str
    source_size: Size
    model_size: Size
    grid: tuple[int, int]
    to_source: Affine
    tensors: tuple[TensorEntry, ...]
    frames: tuple[FrameEntry, ...]
    geometry: Geometry | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A frame that was decoded but has no features."""

    source_seq: int
    reason: str
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A frame that could not be decoded."""

    source_seq: int
    file: str | None


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a stopped job resumes. The file `state` holds the stream's state before the frame number `source_seq`."""

    source_seq: int
    state: str


@dataclass(frozen=True, slots=True)
class Index:
    """The whole index.

    Attributes:
        schema: version of the index format.
        version: version of retinad.
        complete: whether the whole recording was read.
        settings: settings of the extraction.
        mixers: how the model's global blocks mix tokens over time.
        frames: number of frames with features.
        unreadable: number of frames that could not be decoded, in total or, if the index is not complete, before the
            frame at which to resume.
        failures: frames that were decoded but have no features.
        shards: the files with features.
        resume: where to resume, or None.
        unreadable_frames: the first thousand frames that could not be decoded. This field and the fields named `file`
            were added to the format later: earlier versions of retinad did not write them, and ignore them.
    """

    schema: int
    version: str
    complete: bool
    settings: Settings
    mixers: tuple[str, ...]
    frames: int
    unreadable: int
    failures: tuple[Failure, ...]
    shards: tuple[ShardEntry, ...]
    resume: Resume | None
    unreadable_frames: tuple[Unreadable, ...] = ()


def read_index(folder: Path) -> Index | None:
    """Read the index of a folder; None if the folder has none.

    Raises:
        DamagedIndex: the index cannot be read.
    """
    path = folder / INDEX
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedIndex(f"{path}: {error.strerror or error}") from error
    try:
        index = msgspec.json.decode(content, type=Index)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DamagedIndex(f"{path} cannot be read: {error}") from error
    if index.schema != SCHEMA:
        raise DamagedIndex(f"{path} has format {index.schema}, but this version reads format {SCHEMA}")
    return index


def check_files(folder: Path, index: Index) -> None:
    """Check that the files named in an index are in its folder, without reading them.

    Raises:
        DamagedIndex: a shard is missing or truncated, or a name points outside the folder.
    """
    files = [(shard.file, _bytes_of(shard)) for shard in index.shards]
    resume = [] if index.resume is None else [(index.resume.state, 0)]
    for name, min_bytes in files + resume:
        path = folder / name
        if path.name != name:
            raise DamagedIndex(f"{folder / INDEX} names {name}, which is not a file name in this folder")
        if min_bytes and (not path.is_file() or path.stat().st_size < min_bytes):
            raise DamagedIndex(f"{path} is missing or truncated: remove {folder} to start over")


def check_settings(folder: Path, before: Index, settings: Settings) -> None:
    """Check that a folder's features have these settings.

    Raises:
        JobError: the settings differ; the message lists the differences.
    """
    made = before.settings
    made = replace(
        made, model=replace(made.model, layers=settings.model.layers)
    )  # `layers` follows from other settings, which are listed
    changes = show_differences(differences(made, settings))
    if changes:
        raise JobError(
            ExitCode.CANNOT_CREATE,
            f"{folder} holds features with other settings: {changes}. Choose another folder or remove this one",
        )


def _bytes_of(shard: ShardEntry) -> int:
    sizes = (math.prod(tensor.shape) * (4 if tensor.dtype == "float32" else 2) for tensor in shard.tensors)
    return len(shard.frames) * sum(sizes)


def write_index(folder: Path, index: Index) -> None:
    """Replace the index atomically.

    Raises:
        OSError: the index cannot be written.
    """
    with written_whole(folder / INDEX) as file:
        file.write(msgspec.json.encode(index))
