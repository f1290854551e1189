"""Frames with poses from the folder that `retinad extract` wrote. Needs safetensors for folders of safetensors only."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from retinad.client.headers import GeometryHeader
from retinad.client.points import DepthView
from retinad.pipeline.files.tensor_reader import RowReader, UnreadableTensors, open_rows

from ..exit_codes import ExitCode, JobError
from .frames import Colours, FrameSource, PosedFrame, finite_pose

INDEX = "index.json"
OPEN_SHARDS = 2
"""Number of shards that are open at a time: with `map_every`, those with maps and those without alternate."""

Say = Callable[[str], None]
Pictures = Callable[[int], Colours]
"""Returns the captured frame with this `source_seq`, in RGB; called with ascending numbers."""


class _Frame(msgspec.Struct):
    frame: int
    source_seq: int
    pts_ns: int | None
    epoch: int
    epoch_frame: int


class _Tensor(msgspec.Struct):
    name: str


class _Shard(msgspec.Struct):
    file: str
    source_size: tuple[int, int]
    to_source: tuple[tuple[float, float, float], tuple[float, float, float]]
    tensors: tuple[_Tensor, ...]
    frames: tuple[_Frame, ...]
    geometry: GeometryHeader | None = None


class _Settings(msgspec.Struct):
    source: str


class _Index(msgspec.Struct):
    # The part of `extract.index.Index` that is read here, without what needs torch.
    schema: int
    complete: bool
    settings: _Settings
    frames: int
    shards: tuple[_Shard, ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    # Whether frames have times, whether depths are read, and the pictures, if they are wanted.
    timed: bool
    depths: bool
    pictures: Pictures | None


@dataclass(frozen=True, slots=True)
class _Row:
    shard: int
    number: int
    frame: _Frame


def open_extraction(
    path: Path, needed: tuple[str, ...], say: Say, open_pictures: Callable[[str], Pictures] | None = None
) -> FrameSource:
    """Open an extraction.

    Args:
        path: the folder, or the index in it.
        needed: kinds of outputs that it must hold.
        say: prints a line for people.
        open_pictures: opens the recording by its name for the pictures; None if they are not wanted.

    Raises:
        JobError: the folder holds no extraction, or one without the needed outputs, or it is damaged.
    """
    folder = path.parent if path.name == INDEX else path
    index = _read(folder)
    names = {tensor.name for shard in index.shards for tensor in shard.tensors}
    missing = [kind for kind in needed if {"pose": "pose/world_from_camera"}.get(kind, kind) not in names]
    if missing:
        advice = 'set `outputs = ["pose", "depth"]` in [model], and extract it again into another folder'
        raise JobError(ExitCode.NO_INPUT, f"{folder} holds no {' and no '.join(missing)}: {advice}")
    if not index.complete:
        say(f"the extraction in {folder} is not complete: it has {index.frames} frames so far")
    times = [frame.pts_ns for shard in index.shards for frame in shard.frames]
    timed = all(time is not None for time in times)
    if not timed:
        say("the recording has no times: the numbers of its frames count as seconds")
    pictures = None if open_pictures is None else open_pictures(index.settings.source)
    clock = "the recording's beginning" if timed else "frame 0, in frames"
    wanted = _Wanted(timed, "depth" in needed, pictures)
    return FrameSource(str(folder), _frames(folder, index, wanted), clock)


def _read(folder: Path) -> _Index:
    path = folder / INDEX
    try:
        index = msgspec.json.decode(path.read_bytes(), type=_Index)
    except OSError as error:
        advice = "expected an endpoint, such as tcp://127.0.0.1:5555, or a folder that `retinad extract` wrote"
        raise JobError(ExitCode.NO_INPUT, f"{path} cannot be read: {error.strerror}; {advice}") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise JobError(ExitCode.NO_INPUT, f"{path} cannot be read: {error}") from error
    if index.schema != 1:
        raise JobError(ExitCode.NO_INPUT, f"{path} has format {index.schema}, but this version reads format 1")
    return index


def _frames(folder: Path, index: _Index, wanted: _Wanted) -> Iterator[PosedFrame]:
    rows = [
        _Row(place, number, frame)
        for place, shard in enumerate(index.shards)
        for number, frame in enumerate(shard.frames)
    ]
    rows.sort(key=lambda row: row.frame.frame)
    if any(one.frame.frame == other.frame.frame for one, other in pairwise(rows)):
        raise JobError(ExitCode.NO_INPUT, f"{folder / INDEX} names a frame twice")
    opened: OrderedDict[int, RowReader] = OrderedDict()
    for row in rows:
        try:
            yield _posed(_reader(folder, index, opened, row.shard), index.shards[row.shard], row, wanted)
        except UnreadableTensors as error:
            raise JobError(ExitCode.NO_INPUT, str(error)) from error


def _reader(folder: Path, index: _Index, opened: OrderedDict[int, RowReader], place: int) -> RowReader:
    if place not in opened:
        name = index.shards[place].file
        if Path(name).name != name:
            raise JobError(ExitCode.NO_INPUT, f"{folder / INDEX} names {name}, which is not a file name in this folder")
        while len(opened) >= OPEN_SHARDS:
            opened.popitem(last=False)
        opened[place] = open_rows(folder / name)
    opened.move_to_end(place)
    return opened[place]


def _posed(reader: RowReader, shard: _Shard, row: _Row, wanted: _Wanted) -> PosedFrame:
    names, frame = {tensor.name for tensor in shard.tensors}, row.frame
    geometry = shard.geometry or GeometryHeader(world_epoch=frame.epoch)
    pose = None
    if "pose/world_from_camera" in names:
        pose = finite_pose(reader.row("pose/world_from_camera", row.number))
    view = None
    if wanted.depths and names >= {"depth", "depth_confidence", "pose/intrinsics"} and pose is not None:
        view = DepthView(
            depth=reader.row("depth", row.number),
            camera=reader.row("pose/intrinsics", row.number),
            to_source=np.array(shard.to_source),
            shown=(0, 0, *shard.source_size),
            stride=geometry.map_stride,
            confidence=reader.row("depth_confidence", row.number),
            pose=pose,
        )
    return PosedFrame(
        world_epoch=geometry.world_epoch,
        epoch=frame.epoch,
        epoch_frame=frame.epoch_frame,
        time_ns=(frame.pts_ns or 0) if wanted.timed else frame.source_seq * 10**9,
        unit=geometry.unit,
        doubt=geometry.alignment.reason,
        pose=pose,
        view=view,
        picture=None if wanted.pictures is None else partial(wanted.pictures, frame.source_seq),
    )
