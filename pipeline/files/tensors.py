"""Writes safetensors files in pieces, so that a file's contents need not fit into memory."""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from .atomic import written_whole

ITEM_BYTES = MappingProxyType(
    {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
)
"""Bytes per element, by the name of the dtype."""

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A tensor to be written.

    Attributes:
        name: the tensor's key in the file.
        dtype: dtype in the notation of safetensors, such as `F16`.
        shape: the tensor's shape.
        pieces: the tensor's bytes in C order, little-endian, in any number of pieces; consumed by writing the tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[memoryview]

    @property
    def nbytes(self) -> int:
        """Total size of all pieces, in bytes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in safetensors.

    Raises:
        ValueError: safetensors does not support this dtype.
    """
    if dtype not in _NAMES:
        raise ValueError(f"safetensors files cannot hold tensors of {dtype}")
    return _NAMES[dtype]


def tensor_bytes(tensor: Tensor) -> memoryview:
    """A tensor's bytes on the host; copied only if it is on a device or not contiguous."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)  # a scalar has no last axis to view as bytes
    return flat.view(torch.uint8).numpy().data


def write_tensor_file(
    path: Path, metadata: Mapping[str, str], entries: Sequence[Entry], *, mode: int = 0o666, sync_each: bool = False
) -> None:
    """Write a safetensors file atomically, see `written_whole`.

    Args:
        path: path of the file; its folder must exist.
        metadata: texts to store with the tensors.
        entries: tensors to write, in this order.
        mode: the file's permissions, before the umask.
        sync_each: whether each piece is flushed to the disk before the next one is written. Otherwise, on a slow disk,
            the flush after the last piece takes as long as writing all of them.

    Raises:
        OSError: the file cannot be written.
        ValueError: the total size of an entry's pieces does not match its shape.
    """
    with written_whole(path, mode) as file:
        file.write(_preamble(metadata, entries))
        for entry in entries:
            written = 0
            for piece in entry.pieces:
                written += file.write(piece)
                if sync_each:
                    file.flush()
                    os.fdatasync(file.fileno())
            if written != entry.nbytes:
                raise ValueError(f"{entry.name}: expected {entry.nbytes} bytes, got {written}")


def _preamble(metadata: Mapping[str, str], entries: Sequence[Entry]) -> bytes:
    # The format of https://huggingface.co/docs/safetensors: the length of a JSON text, that text, then the tensors
    # without gaps.
    described: dict[str, object] = {"__metadata__": dict(metadata)}
    begin = 0
    for entry in entries:
        end = begin + entry.nbytes
        described[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
