"""State files: a stream's memory in a safetensors file, written atomically and in pieces so that it can be aborted.

The last tensor holds the CRC-32 of the header and of every other tensor, since a number that a disk has corrupted looks
like any other.
"""

import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import StateError
from .atomic import PRIVATE
from .readable import why_unreadable
from .tensors import Entry, dtype_name, tensor_bytes, write_tensor_file

PIECE_BYTES = 16 << 20
"""Bytes that are copied from the device and flushed at once. Writing stops at most one piece after its deadline."""

_KEY = "retinad"
_SUMS = "crc32"
"""Name of the checksum tensor: the header's checksum, then those of the tensors in the order of their names."""

NamedTensors = Sequence[tuple[str, Tensor]]


def write_state_file(path: Path, header: str, tensors: NamedTensors, deadline_s: float | None = None) -> None:
    """Write a state file atomically; only its owner can read it.

    Args:
        path: path of the file; its folder must exist.
        header: text to store with the tensors.
        tensors: names and values, on any device.
        deadline_s: `time.monotonic()` at which to abort, or None.

    Raises:
        StateError: the file cannot be written, or not before the deadline. An existing file at `path` is unchanged, and
            no temporary file is left.
    """
    sums = _Sums(header)
    entries = [
        Entry(name, dtype_name(tensor.dtype), tuple(tensor.shape), sums.of(name, _timely(tensor, deadline_s)))
        for name, tensor in tensors
    ]
    entries.append(Entry(_SUMS, dtype_name(torch.int64), (1 + len(tensors),), sums.pieces()))
    try:
        write_tensor_file(path, {_KEY: header}, entries, mode=PRIVATE, sync_each=True)
    except OSError as error:
        raise StateError(f"{path}: {error.strerror or error}") from error


class _Slice(Protocol):
    def get_dtype(self) -> str: ...

    def get_shape(self) -> list[int]: ...


class _Opened(Protocol):
    # The part of `safe_open`'s result that is used here.
    def metadata(self) -> dict[str, str] | None: ...

    def keys(self) -> list[str]: ...

    def get_tensor(self, name: str) -> Tensor: ...

    def get_slice(self, name: str) -> _Slice: ...


class StateFile:
    """A state file that is open for reading.

    Attributes:
        header: the text that was stored with the tensors.
    """

    def __init__(self, path: Path, file: _Opened) -> None:
        self._path = path
        self._file = file
        header = (file.metadata() or {}).get(_KEY)
        if header is None:
            raise StateError(f"{path} is not a state file")
        self.header: str = header
        names = sorted(name for name in file.keys() if name != _SUMS)  # noqa: SIM118  # no mapping
        self.check(_SUMS, torch.int64, (1 + len(names),))
        found, *of_tensors = file.get_tensor(_SUMS).tolist()
        self._sums = dict(zip(names, of_tensors, strict=True))
        if found != zlib.crc32(header.encode()):
            raise StateError(f"{path} is damaged: the checksum of its header does not match")

    def tensor(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """Read a tensor to the host.

        Raises:
            StateError: the tensor is missing, has another dtype or shape, or its checksum does not match.
        """
        self.check(name, dtype, shape)
        tensor = self._file.get_tensor(name)
        if self._sums[name] != zlib.crc32(tensor_bytes(tensor)):
            raise StateError(f"{self._path} is damaged: the checksum of {name} does not match")
        return tensor

    def check(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> None:
        """Check that a tensor exists with this dtype and shape, without reading it.

        Raises:
            StateError: it does not.
        """
        if name not in self._file.keys():  # noqa: SIM118  # no mapping
            raise StateError(f"{self._path} has no tensor {name}")
        part = self._file.get_slice(name)
        found = part.get_dtype(), part.get_shape()
        if found != (dtype_name(dtype), list(shape)):
            raise StateError(f"{self._path}: {name} is {found}, expected {(dtype_name(dtype), list(shape))}")


@contextmanager
def open_state_file(path: Path) -> Iterator[StateFile]:
    """Open a file that `write_state_file` wrote.

    Raises:
        StateError: the file is missing, damaged or of another kind.
    """
    if path.exists() and not path.is_file():  # opening a pipe would block, and safetensors would hold the GIL
        raise StateError(f"{path} is not a regular file")
    if (reason := why_unreadable(path)) is not None:  # safetensors would call it missing
        raise StateError(f"{path}: {reason}")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield StateFile(path, file)
    except OSError as error:
        raise StateError(f"{path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise StateError(f"{path} cannot be read: {error}") from error


class _Sums:
    # Computed on the way to the disk: at 1.2 GB/s (zlib, one core) that takes less time than writing.
    def __init__(self, header: str) -> None:
        self._header = zlib.crc32(header.encode())
        self._tensors: dict[str, int] = {}

    def of(self, name: str, pieces: Iterator[memoryview]) -> Iterator[memoryview]:
        self._tensors[name] = 0
        for piece in pieces:
            self._tensors[name] = zlib.crc32(piece, self._tensors[name])
            yield piece

    def pieces(self) -> Iterator[memoryview]:
        by_name = [self._tensors[name] for name in sorted(self._tensors)]
        yield tensor_bytes(torch.tensor([self._header, *by_name]))


def _timely(tensor: Tensor, deadline_s: float | None) -> Iterator[memoryview]:
    for piece in _pieces(tensor):
        if deadline_s is not None and time.monotonic() >= deadline_s:
            raise StateError("there was no time left to write it")
        yield tensor_bytes(piece)


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    size = tensor.numel() * tensor.itemsize
    if size <= PIECE_BYTES or not tensor.ndim:
        yield tensor
    elif len(tensor) == 1:
        yield from _pieces(tensor[0])
    else:
        rows = max(1, len(tensor) * PIECE_BYTES // size)
        for begin in range(0, len(tensor), rows):
            yield from _pieces(tensor[begin : begin + rows])
