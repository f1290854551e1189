"""A memory as a safetensors file: written piece by piece, so that it can be given up, and there whole or not at all."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import StateError

PIECE_BYTES = 16 << 20
"""What is copied from the device and brought to the disk at once: writing ends at most one piece after its deadline."""

PARTIAL = ".partial"
"""What the name of a file ends in while it is written."""

_KEY = "retinad"
_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.uint8: "U8"}

NamedTensors = Sequence[tuple[str, Tensor]]


def write_state_file(path: Path, header: str, tensors: NamedTensors, deadline_s: float | None = None) -> None:
    """Write a file that only its owner can read, then rename it over what stood there.

    Args:
        path: where; the folder exists.
        header: text that is kept with the tensors.
        tensors: names and values, float32, float16, bfloat16 or uint8, on any device.
        deadline_s: `time.monotonic()` at which to give up, or None.

    Raises:
        StateError: it cannot be written, or not by then. What stood at `path` still does; nothing is left beside it.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        with _created(partial) as file:
            _write(file, header, tensors, deadline_s)
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise StateError(f"{path}: {error.strerror or error}") from error


class _Slice(Protocol):
    def get_dtype(self) -> str: ...

    def get_shape(self) -> list[int]: ...


class _Opened(Protocol):
    # What is used of a file that `safe_open` opened.
    def metadata(self) -> dict[str, str] | None: ...

    def keys(self) -> list[str]: ...

    def get_tensor(self, name: str) -> Tensor: ...

    def get_slice(self, name: str) -> _Slice: ...


class StateFile:
    """A file that is open for reading.

    Attributes:
        header: the text that it was written with.
    """

    def __init__(self, path: Path, file: _Opened) -> None:
        self._path = path
        self._file = file
        header = (file.metadata() or {}).get(_KEY)
        if header is None:
            raise StateError(f"{path} holds no stream's memory")
        self.header: str = header

    def tensor(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """A tensor, on the host.

        Raises:
            StateError: it is missing, or has another number format or shape.
        """
        self.check(name, dtype, shape)
        return self._file.get_tensor(name)

    def check(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> None:
        """Look whether a tensor is there, in this format and shape, without reading it.

        Raises:
            StateError: it is not.
        """
        if name not in self._file.keys():  # noqa: SIM118  # no mapping
            raise StateError(f"{self._path} has no tensor {name}")
        part = self._file.get_slice(name)
        found = part.get_dtype(), part.get_shape()
        if found != (_NAMES[dtype], list(shape)):
            raise StateError(f"{self._path}: {name} is {found}, expected {(_NAMES[dtype], list(shape))}")


@contextmanager
def open_state_file(path: Path) -> Iterator[StateFile]:
    """Read a file that `write_state_file` wrote.

    Raises:
        StateError: it is missing, damaged or of another kind.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield StateFile(path, file)
    except OSError as error:
        raise StateError(f"{path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise StateError(f"{path} cannot be read: {error}") from error


def _write(file: BinaryIO, header: str, tensors: NamedTensors, deadline_s: float | None) -> None:
    file.write(_preamble(header, tensors))
    for _, tensor in tensors:
        for piece in _pieces(tensor):
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise StateError("there was no time to write it")
            file.write(piece.contiguous().cpu().view(torch.uint8).numpy().data)
            file.flush()
            # Piece by piece: else a slow disk makes the last one wait for all.
            os.fdatasync(file.fileno())
    file.flush()
    os.fsync(file.fileno())


def _preamble(header: str, tensors: NamedTensors) -> bytes:
    # https://huggingface.co/docs/safetensors: the length of a JSON text, that text, then the tensors without holes.
    entries: dict[str, object] = {"__metadata__": {_KEY: header}}
    begin = 0
    for name, tensor in tensors:
        end = begin + tensor.numel() * tensor.itemsize
        entries[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


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


@contextmanager
def _created(path: Path) -> Iterator[BinaryIO]:
    # Unlike a name of its own for each try, this one leaves at most one file where a process is killed.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            yield file
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
