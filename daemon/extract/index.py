"""The index of an extracted recording, `index.json`: what its shards hold, by which settings, and where to go on."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from retinad.pipeline.config import OutputConfig, ResizeMode, StreamConfig
from retinad.pipeline.config_diff import differences
from retinad.pipeline.engine.checkpoint import ModelIdentity
from retinad.pipeline.files.atomic import written_whole
from retinad.pipeline.frames import Affine, Flag, Size, TokenGroup

from ..config.keys import show_differences
from ..exit_codes import ExitCode, JobError

SCHEMA = 1
"""Number of the index's form."""

INDEX = "index.json"

Form = Literal["safetensors", "npz"]
FORMS = ("safetensors", "npz")


class DamagedIndex(Exception):
    """An index cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What must be the same for a job to go on.

    Attributes:
        source: the recording, a path from the root on, passwords masked.
        resize: how pictures are fitted to the model.
        image_width: width in pixels that they are fitted to.
        model_name: the preset.
        model: weights, network and number format.
        output: which features are written.
        stream: what the stream remembers.
        form: what the shards are.
    """

    source: str
    resize: ResizeMode
    image_width: int
    model_name: str
    model: ModelIdentity
    output: OutputConfig
    stream: StreamConfig
    form: Form


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of a shard: its first axis are the shard's frames, `shape` are the others.

    `dtype` is float16, float32 or bfloat16, whose bits an `.npz` holds as uint16.
    """

    name: str
    layer: int
    group: TokenGroup
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """One frame of a shard, in the order of its rows. Names as in the service's messages.

    `frame` counts the frames that gave features, from 0; `file` is the picture of a folder or glob, else None.
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
    """One file of features, whose frames all have one size."""

    file: str
    source_size: Size
    model_size: Size
    grid: tuple[int, int]
    to_source: Affine
    tensors: tuple[TensorEntry, ...]
    frames: tuple[FrameEntry, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A frame that was read, but gave no features."""

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
    """Where to go on: the stream's memory in `state` is that before the frame `source_seq`."""

    source_seq: int
    state: str


@dataclass(frozen=True, slots=True)
class Index:
    """The whole index.

    Attributes:
        schema: number of its form.
        version: of retinad.
        complete: whether the recording was read to its end.
        settings: by which settings.
        mixers: how the model's global blocks mix tokens over time.
        frames: frames that gave features.
        unreadable: frames that could not be decoded, before the place where a job goes on or in all.
        failures: frames that were decoded and gave no features.
        shards: the files.
        resume: where to go on, or None.
        unreadable_frames: which could not be decoded, the first thousand. This and `file` are newer than their form:
            earlier versions wrote none, and read over it.
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
    """The index of a folder, or None if it has none.

    Raises:
        DamagedIndex: there is one, and it cannot be read.
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
        raise DamagedIndex(f"{path} is of form {index.schema}, this program reads {SCHEMA}")
    return index


def check_files(folder: Path, index: Index) -> None:
    """Look whether the files that an index names are in its folder, without reading them.

    Raises:
        DamagedIndex: a shard is missing or shorter than its features, or a name leads out of the folder.
    """
    files = [(shard.file, _bytes_of(shard)) for shard in index.shards]
    resume = [] if index.resume is None else [(index.resume.state, 0)]
    for name, least in files + resume:
        path = folder / name
        if path.name != name:
            raise DamagedIndex(f"{folder / INDEX} names {name}, which is no file of this folder")
        if least and (not path.is_file() or path.stat().st_size < least):
            raise DamagedIndex(f"{path} is missing or too short: remove {folder} to begin anew")


def check_settings(folder: Path, before: Index, settings: Settings) -> None:
    """Check that a folder's features were made with these settings.

    Raises:
        JobError: others, which the message names.
    """
    made = before.settings
    made = replace(
        made, model=replace(made.model, layers=settings.model.layers)
    )  # follows from others, which are named
    changes = show_differences(differences(made, settings))
    if changes:
        raise JobError(
            ExitCode.CANNOT_CREATE,
            f"{folder} holds features made with other settings: {changes}. Name another folder, or remove this one",
        )


def _bytes_of(shard: ShardEntry) -> int:
    sizes = (math.prod(tensor.shape) * (4 if tensor.dtype == "float32" else 2) for tensor in shard.tensors)
    return len(shard.frames) * sum(sizes)


def write_index(folder: Path, index: Index) -> None:
    """Write the index whole, over the one before.

    Raises:
        OSError: it cannot be written.
    """
    with written_whole(folder / INDEX) as file:
        file.write(msgspec.json.encode(index))
