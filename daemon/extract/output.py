"""The output folder of an extraction: shards and an index, each written atomically.

Only shards that the index names are valid. Other shards are left over from a job that was killed; they are removed, and
their frames are extracted again. So the index, its shards and the state to resume from are always consistent.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import numpy as np

from retinad.pipeline.files.atomic import written_whole
from retinad.pipeline.files.ownership import NotOursError, check_way
from retinad.pipeline.files.tensors import Entry, write_tensor_file
from retinad.pipeline.frames import DType, Features, FrameFailure, Outcome, Output, OutputTensor, TokenOutput
from retinad.pipeline.publish.encode import tensor_bytes

from ..exit_codes import ExitCode, JobError
from .index import (
    INDEX,
    SCHEMA,
    DamagedIndex,
    Failure,
    FrameEntry,
    Index,
    Resume,
    Settings,
    ShardEntry,
    TensorEntry,
    check_files,
    check_settings,
    read_index,
    write_index,
)
from .names import find_unreadable, name_of

SHARD_BYTES = 256 << 20
"""Size in bytes at which a shard is full: large enough for any disk, small enough to write without a long pause."""

_SAFETENSORS_DTYPES: Final[Mapping[DType, str]] = {"float16": "F16", "float32": "F32", "bfloat16": "BF16"}
"""The name of each number format in safetensors."""


def find_index(folder: Path) -> Index | None:
    """Read the index of an earlier job in this folder; None if the folder is new or empty.

    Raises:
        JobError: the folder cannot be used, because it is not a folder or holds something else.
    """
    try:
        index = read_index(folder)
        if index is not None:
            check_files(folder, index)
        elif folder.exists() and any(folder.iterdir()):
            raise JobError(ExitCode.CANNOT_CREATE, f"{folder} is not empty and has no {INDEX}: choose an empty folder")
    except DamagedIndex as error:
        raise JobError(ExitCode.CANNOT_CREATE, str(error)) from error
    except OSError as error:
        raise JobError(ExitCode.CANNOT_CREATE, f"{folder} cannot be used: {error.strerror or error}") from error
    return index


def others_note(folder: Path) -> str | None:
    """Why other users could replace the features in a folder, which need not exist yet; None if they could not.

    This is only warned of, unlike with the folders of the service: results often belong into a folder that a team
    shares or that another user owns, the job reads back nothing but its own index and state, and neither holds code.
    """
    try:
        check_way(folder / INDEX)
    except NotOursError as error:
        return f"another user can replace what is in {folder}: {error}"
    except OSError:  # it is reported where the folder is used
        return None
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _Shard:
    # A shard that is being filled: its frames, and their numbers among those with features.
    frames: list[Features]
    numbers: list[int]


class OutputFolder:
    """Writes one job's folder. Not thread-safe.

    Attributes:
        index: the index as last written.
        frames: number of frames with features that were added, including those of earlier runs.
        files: file names of the recording's images by `source_seq`, if it has any; to be set before `add`.

    Args:
        folder: the folder, which exists.
        index: the index of an earlier run with the same settings, or a new one.
        shard_frames: maximum number of frames in a shard, or None for as many as fit in `SHARD_BYTES`.
        lock: file descriptor that holds the lock on the folder.
    """

    def __init__(self, folder: Path, index: Index, shard_frames: int | None, lock: int) -> None:
        self.index = index
        self.frames = index.frames
        self.files: Sequence[str] = ()
        self._folder = folder
        self._shard_frames = shard_frames
        self._shards = list(index.shards)
        self._failures = list(index.failures)
        self._lock: int | None = lock
        self._place: tuple[object, ...] | None = None
        self._open: dict[tuple[Output, ...], _Shard] = {}  # with `map_every`, frames with maps and frames without

    @classmethod
    def open(
        cls,
        folder: Path,
        before: Index | None,
        settings: Settings,
        mixers: tuple[str, ...],
        version: str,
        shard_frames: int | None = None,
    ) -> Self:
        """Create a folder, or resume one that has the same settings. Files that its index does not name are removed.

        Raises:
            JobError: the settings differ, another job is writing to the folder, or the folder cannot be written.
        """
        if before is not None:
            check_settings(folder, before, settings)
        with _written(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = _lock(folder)
            if find_index(folder) != before:
                os.close(lock)
                raise JobError(ExitCode.UNAVAILABLE, f"another job has written to {folder}: try again")
            if before is None:
                before = Index(SCHEMA, version, False, settings, mixers, 0, 0, (), (), None)
                write_index(folder, before)
        output = cls(folder, before, shard_frames, lock)
        output._clean()
        return output

    def close(self) -> None:
        """Unlock the folder. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def state_path(self, source_seq: int) -> Path:
        """The path of the file for the stream's state before this frame."""
        return self._folder / f"state-{source_seq:09}.safetensors"

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Add the results of a step, and write shards that are full.

        Raises:
            JobError: a shard cannot be written.
        """
        for outcome in outcomes:
            if isinstance(outcome, FrameFailure):
                number = outcome.stamp.source_seq
                self._failures.append(Failure(number, outcome.reason, name_of(self.files, number)))
            else:
                self._add(outcome)

    def checkpoint(self, resume: Resume) -> None:
        """Write everything that was added, and an index that resumes at `resume`; the previous state file is removed.

        Raises:
            JobError: the folder cannot be written.
        """
        self._write_shards()
        self._write_index(replace(self.index, resume=resume), resume.source_seq)

    def finish(self, source_frames: int) -> None:
        """Write everything that was added and the final index.

        Args:
            source_frames: number of frames in the recording, including those that could not be decoded.

        Raises:
            JobError: the folder cannot be written.
        """
        self._write_shards()
        self._write_index(replace(self.index, complete=True, resume=None), source_frames)

    def _add(self, features: Features) -> None:
        if self._place != (place := _place(features)):
            self._write_shards()
            self._place = place
        outputs = tuple(tensor.output for tensor in features.tensors)
        shard = self._open.setdefault(outputs, _Shard([], []))
        shard.frames.append(features)
        shard.numbers.append(self.frames)
        self.frames += 1
        if len(shard.frames) >= (self._shard_frames or _frames_of(features)):
            self._write_shard(self._open.pop(outputs))

    def _write_shards(self) -> None:
        while self._open:
            self._write_shard(self._open.pop(next(iter(self._open))))

    def _write_shard(self, shard: _Shard) -> None:
        form = self.index.settings.form
        path = self._folder / f"features-{len(self._shards):06}.{form}"
        with _written(self._folder):
            write_npz(path, shard.frames) if form == "npz" else write_safetensors(path, shard.frames)
        self._shards.append(_described(path.name, shard, self.files))

    def _write_index(self, index: Index, end: int) -> None:
        unreadable, named = find_unreadable(self._shards, self._failures, end, self.files)
        index = replace(index, frames=self.frames, shards=tuple(self._shards), failures=tuple(self._failures))
        index = replace(index, unreadable=unreadable, unreadable_frames=named)
        before, self.index = self.index.resume, index
        with _written(self._folder):
            write_index(self._folder, index)
            if before is not None and before != index.resume:  # no other state: a newer one may be half written
                (self._folder / before.state).unlink(missing_ok=True)

    def _clean(self) -> None:
        # Removes files of a job that was killed while writing.
        named = {INDEX, *(shard.file for shard in self.index.shards)}
        if self.index.resume is not None:
            named.add(self.index.resume.state)
        with _written(self._folder):
            for pattern in ("features-*", "state-*", f"{INDEX}.*"):
                for path in self._folder.glob(pattern):
                    if path.name not in named:
                        path.unlink()


def write_safetensors(path: Path, frames: Sequence[Features]) -> None:
    """Write a shard as safetensors, with tensors [frames, ...], without copying their numbers.

    Raises:
        OSError: the file cannot be written.
    """
    entries = [
        Entry(
            one.name,
            _SAFETENSORS_DTYPES[one.output.dtype],
            (len(frames), *one.output.shape),
            (tensor_bytes(tensor) for tensor in row),
        )
        for one, row in _columns(frames)
    ]
    write_tensor_file(path, {"retinad": "features of consecutive frames; see index.json"}, entries)


def write_npz(path: Path, frames: Sequence[Features]) -> None:
    """Write a shard as npz; bfloat16 numbers are stored as their raw bits, in uint16.

    Raises:
        OSError: the file cannot be written.
    """
    arrays = {one.name: np.stack([tensor.data for tensor in row]) for one, row in _columns(frames)}
    with written_whole(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub mistakes them for `allow_pickle`


def _columns(frames: Sequence[Features]) -> list[tuple[OutputTensor, list[OutputTensor]]]:
    # For each output, the tensor of the first frame, and the tensors of all frames.
    firsts = frames[0].tensors
    return [(one, [frame.tensors[index] for frame in frames]) for index, one in enumerate(firsts)]


def _place(features: Features) -> tuple[object, ...]:
    # What all frames of a shard have in common, besides their outputs.
    return features.stamp.captured_size, features.model_size, features.geometry


def _entry(tensor: OutputTensor) -> TensorEntry:
    output = tensor.output
    tokens = output if isinstance(output, TokenOutput) else None
    layer, group = (None, None) if tokens is None else (tokens.layer, tokens.group)
    return TensorEntry(output.name, layer, group, output.dtype, output.shape)


def _described(file: str, shard: _Shard, files: Sequence[str]) -> ShardEntry:
    one = shard.frames[0]
    tensors = (_entry(tensor) for tensor in one.tensors)
    entries = (
        FrameEntry(
            frame=number,
            source_seq=features.stamp.source_seq,
            pts_ns=features.stamp.pts_ns,
            epoch=features.epoch,
            epoch_frame=features.epoch_frame,
            keyframe=features.keyframe,
            flags=tuple(sorted(features.flags)),
            file=name_of(files, features.stamp.source_seq),
        )
        for number, features in zip(shard.numbers, shard.frames, strict=True)
    )
    size = one.stamp.captured_size
    return ShardEntry(file, size, one.model_size, one.grid, one.to_source, tuple(tensors), tuple(entries), one.geometry)


def _frames_of(features: Features) -> int:
    return max(1, SHARD_BYTES // sum(tensor.data.nbytes for tensor in features.tensors))


def _lock(folder: Path) -> int:
    # Locks the folder itself, so that no lock file of a killed job can be left behind.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise JobError(ExitCode.UNAVAILABLE, f"another job is writing to {folder}") from None
    return descriptor


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JobError(ExitCode.IO_ERROR, f"{folder} cannot be written: {error.strerror or error}") from error
