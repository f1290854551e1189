"""Writes safetensors files piece by piece, so that what is written need never be in memory as a whole."""

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
"""Bytes of a number by the format's name."""

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
    """A tensor that is to be written.

    Attributes:
        name: its key.
        dtype: number format as safetensors spells it, such as `F16`.
        shape: its extent.
        pieces: its bytes in C order, little-endian, in as many pieces as wanted; taken when its turn comes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[memoryview]

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def dtype_name(dtype: torch.dtype) -> str:
    """How safetensors spells a number format.

    Raises:
        ValueError: it has no name for it.
    """
    if dtype not in _NAMES:
        raise ValueError(f"tensors of {dtype} cannot be written")
    return _NAMES[dtype]


def tensor_bytes(tensor: Tensor) -> memoryview:
    """A tensor's bytes on the host; copied only where it lies on a device or is not contiguous."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)  # a number alone has no last axis to view as bytes
    return flat.view(torch.uint8).numpy().data


def write_tensor_file(
    path: Path, metadata: Mapping[str, str], entries: Sequence[Entry], *, mode: int = 0o666, sync_each: bool = False
) -> None:
    """Write a file whole or not at all, see `written_whole`.

    Args:
        path: where; the folder exists.
        metadata: texts that are kept with the tensors.
        entries: what is written, in this order.
        mode: the file's permissions, before the umask.
        sync_each: whether each piece is brought to the disk before the next is taken: else a slow disk makes the last
            one wait for all.

    Raises:
        OSError: it cannot be written.
        ValueError: an entry's pieces are not as long as its shape says.
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
    # https://huggingface.co/docs/safetensors: the length of a JSON text, that text, then the tensors without holes.
    described: dict[str, object] = {"__metadata__": dict(metadata)}
    begin = 0
    for entry in entries:
        end = begin + entry.nbytes
        described[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
