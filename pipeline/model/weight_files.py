"""Reads weight files: `.safetensors`, what torch.save writes, and shards with an index. Code in a file never runs."""

import hashlib
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from ..errors import CheckpointError
from .weight_paths import INDEX, SAVED_SUFFIXES, ZIP_START, read_index, weight_files

WRAPPERS = ("model", "state_dict", "model_state_dict")
"""Keys under which training frameworks keep the state dict in a `.pt` file."""


def read_state_dict(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a `.safetensors` file, of a file of torch.save, or of all shards that an index names, by key.

    A `.pt` file holds the state dict itself, or has it under one of `WRAPPERS`. Tensors are memory-mapped, except those
    of `.pt` files from before PyTorch 1.6, which are read.

    Raises:
        CheckpointError: a file is missing, may not be read, is damaged or of another format, or contains anything but
            tensors and plain data; or the content of a shard differs from the index.
    """
    files = weight_files(path)
    if not path.name.endswith(INDEX):
        return _read(path)
    index, tensors = read_index(path), dict[str, Tensor]()
    for file in files:
        own = _read(file)
        expected = {key for key, name in index.items() if name == file.name}
        if expected != own.keys():
            key = min(expected ^ own.keys())
            which = "lacks" if key in expected else "also holds"
            raise CheckpointError(f"checkpoint {path}: {file.name} {which} {key}, but the index says otherwise")
        tensors.update(own)
    return tensors


def file_note(path: Path) -> str | None:
    """The note under `retinad` in the metadata of a `.safetensors` file, as `retinad convert` writes it.

    Returns:
        None if there is no note, or the file has another format.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    notes = (_note(file) for file in weight_files(path) if file.suffix == ".safetensors")
    return next((note for note in notes if note is not None), None)


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex; of shards with an index, that of all shards in the order of their names.

    Raises:
        CheckpointError: a file is missing or may not be read.
    """
    digest = hashlib.sha256()
    for part in weight_files(path):
        with part.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def _note(path: Path) -> str | None:
    with _translated(path), safe_open(path, framework="pt", device="cpu") as file:
        note: str | None = (file.metadata() or {}).get("retinad")
    return note


def _read(path: Path) -> Mapping[str, Tensor]:
    with _translated(path):
        if path.suffix == ".safetensors":
            return load_file(path, device="cpu")
        if path.suffix in SAVED_SUFFIXES:
            mapped = _is_zip(path)
            return _tensors(path, torch.load(path, map_location="cpu", weights_only=True, mmap=mapped))
    raise CheckpointError(f"checkpoint {path}: it has another suffix than files of weights")


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"checkpoint {path} is refused, because it holds objects that could run code") from error
    except (SafetensorError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from error


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(ZIP_START)) == ZIP_START


def _tensors(path: Path, loaded: object) -> Mapping[str, Tensor]:
    state = _unwrapped(path, loaded)
    if not isinstance(state, dict) or not all(isinstance(k, str) and _is_plain(v) for k, v in state.items()):
        places = ", ".join(f"`{name}`" for name in WRAPPERS)
        raise CheckpointError(
            f"checkpoint {path}: expected a state dict of dense tensors, at the top or under {places}"
        )
    return state


def _unwrapped(path: Path, loaded: object) -> object:
    while isinstance(loaded, dict):
        inside = [name for name in WRAPPERS if isinstance(loaded.get(name), dict)]
        if not inside:
            break
        if len(inside) > 1:
            names = " and ".join(f"`{name}`" for name in inside)
            raise CheckpointError(f"checkpoint {path} holds {names}: save one of them alone")
        loaded = loaded[inside[0]]
    return loaded


def _is_plain(value: object) -> bool:
    # Sparse, quantized and meta tensors have a shape too, but no plain numbers.
    return isinstance(value, Tensor) and value.layout is torch.strided and not (value.is_quantized or value.is_meta)
