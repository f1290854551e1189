"""The files of configured weights: one file, or the shards that an index names. Imports no torch, for `check`."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import CheckpointError
from ..files.readable import why_unreadable

INDEX = ".index.json"
"""The end of an index's name, which the libraries that write shards call `model.safetensors.index.json`."""

ZIP_START = b"PK\x03\x04"
OLD_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of `.pt` files: those of PyTorch 1.6 and later, and those of earlier versions."""

SAVED_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
"""Suffixes of files that torch.save writes."""

_LARGEST_INDEX = 64 << 20
_LARGEST_HEADER = 100 << 20
"""The largest header that the library safetensors reads, in bytes."""
_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{2,6})-of-(?P<count>\d{2,6})(?P<suffix>\.[a-z]+)")
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGES = (b"<!doctype html", b"<html")


def weight_files(path: Path) -> tuple[Path, ...]:
    """The files that hold the tensors: the file itself, or an index's shards by name, each of them readable.

    Raises:
        CheckpointError: a file is missing, may not be read, or is a pointer or a web page instead of weights.
    """
    if (fault := weights_fault(path)) is not None:
        raise CheckpointError(f"checkpoint {path}: {fault}")
    return tuple(path.with_name(name) for name in _shards(read_index(path))) if _is_index(path) else (path,)


def weights_fault(path: Path) -> str | None:
    """What is wrong with the files of the configured weights, whatever they contain; None if nothing is."""
    if (fault := _file_fault(path)) is not None or not _is_index(path):
        return fault
    try:
        shards = _shards(read_index(path))
    except CheckpointError as error:
        return str(error).partition(": ")[2]
    faults = ((name, _file_fault(path.with_name(name))) for name in shards)
    return next((f"its shard {name}: {fault}" for name, fault in faults if fault is not None), None)


def read_index(path: Path) -> Mapping[str, str]:
    """The file of each key, from an index.

    Raises:
        CheckpointError: it cannot be read or is no index.
    """
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_LARGEST_INDEX))
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {path}: it is no index of shards: not JSON") from error
    named = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(named, dict) or not named or not all(map(_is_file_name, named.values())):
        wanted = "expected `weight_map`, with a file of the same folder for each key"
        raise CheckpointError(f"checkpoint {path}: it is no index of shards: {wanted}")
    return named


def shard_hint(path: Path) -> str:
    """A hint for a file whose name says that it is one of several shards; empty for any other."""
    match = _SHARD.fullmatch(path.name)
    if match is None or int(match["count"]) == 1:
        return ""
    index = f"{match['stem']}{match['suffix']}{INDEX}"
    return f"it is shard {int(match['number'])} of {int(match['count'])}: set checkpoint to their index, {index}"


def _is_index(path: Path) -> bool:
    return path.name.endswith(INDEX)


def _shards(index: Mapping[str, str]) -> list[str]:
    return sorted(set(index.values()))


def _file_fault(path: Path) -> str | None:
    if (reason := why_unreadable(path)) is not None:
        return reason
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(len(_LFS_POINTER))
    if not size:
        return "the file is empty"
    if start == _LFS_POINTER:
        return "it is a git-lfs pointer, not the weights: run `git lfs pull` in its repository"
    if start.lstrip().lower().startswith(_PAGES):
        return "it is a web page, not the weights: download the file itself"
    if not any(start):
        return "it begins with zeros, as an interrupted download or copy leaves it: fetch it again"
    if _is_index(path):
        return None
    if path.suffix == ".safetensors":
        return _safetensors_fault(path, size)
    if path.suffix in SAVED_SUFFIXES:
        return None if start.startswith((ZIP_START, OLD_START)) else "it was not written by torch.save"
    suffixes = ", ".join((".safetensors", *SAVED_SUFFIXES))
    return f"expected a file whose name ends in {suffixes} or {INDEX}"


def _safetensors_fault(path: Path, size: int) -> str | None:
    # The header says where each tensor ends, so a file that was cut off is found without reading it.
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _LARGEST_HEADER):
            return "it is no safetensors file, or was cut off within its header"
        header = file.read(length)
    try:
        parts = json.loads(header)
        ends = [part["data_offsets"][1] for name, part in parts.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, RecursionError, AttributeError, TypeError, LookupError):
        return "it is no safetensors file: its header is not JSON that describes tensors"
    if size < expected:
        return f"it was cut off: it has {size} of {expected} bytes"
    return None


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\0"} & set(name)
