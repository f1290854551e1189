"""Reads single rows of the tensors in a shard of an extraction, safetensors or npz, as numpy arrays."""

import zipfile
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.generic]

_NPZ_ERRORS = (OSError, EOFError, ValueError, KeyError, IndexError, zipfile.BadZipFile)
"""What numpy raises for a damaged file, or for a tensor or row that it lacks."""


class UnreadableTensors(Exception):
    """A file cannot be read, or lacks a tensor or a row; the message says which."""


class RowReader(Protocol):
    """An open shard. Its tensors' first axis counts frames."""

    def row(self, name: str, number: int) -> Row:
        """One frame's numbers of a tensor.

        Raises:
            UnreadableTensors: the file has no such tensor or row, or is damaged.
        """


def open_rows(path: Path) -> RowReader:
    """Open a file whose name ends in `.npz`, or else a safetensors file.

    Raises:
        UnreadableTensors: the file cannot be read.
        ModuleNotFoundError: the package safetensors, which only a safetensors file needs, is not installed.
    """
    return _NpzRows(path) if path.suffix == ".npz" else _SafetensorsRows(path)


class _NpzRows:
    # A tensor is read whole at its first use, and kept.
    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[str, Row] = {}
        try:
            self._file = np.load(path, allow_pickle=False)
        except _NPZ_ERRORS as error:
            raise UnreadableTensors(f"{path} cannot be read: {error}") from error

    def row(self, name: str, number: int) -> Row:
        try:
            if name not in self._kept:
                self._kept[name] = self._file[name]
            found: Row = self._kept[name][number]
        except _NPZ_ERRORS as error:
            raise UnreadableTensors(f"{name}, row {number}, of {self._path} cannot be read: {error}") from error
        return found


class _SafetensorsRows:
    # Rows are read one by one.
    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self._path = path
        self._errors = (OSError, ValueError, IndexError, SafetensorError)
        try:
            self._file = safe_open(path, framework="numpy")
        except self._errors as error:
            raise UnreadableTensors(f"{path} cannot be read: {error}") from error

    def row(self, name: str, number: int) -> Row:
        try:
            found: Row = self._file.get_slice(name)[number]  # type: ignore[no-untyped-call]
        except self._errors as error:
            raise UnreadableTensors(f"{name}, row {number}, of {self._path} cannot be read: {error}") from error
        return found
