"""Reads weight files: `.safetensors`, `.pt` and `.pth`. Code in a file is never executed."""

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from ..errors import ModelError

ZIP_START = b"PK\x03\x04"
OLD_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of `.pt` files: as PyTorch writes them, and as it did before 1.6."""


def read_state_dict(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a `.safetensors`, `.pt` or `.pth` file by key.

    A `.pt` file holds the state dict itself, or has it under `model`. Tensors are memory-mapped, except those of `.pt`
    files from before PyTorch 1.6, which are read.

    Raises:
        ModelError: the file is missing, damaged, of another format, or holds anything but tensors and plain data.
    """
    if path.exists() and not path.is_file():  # opening a pipe would block
        raise ModelError(f"checkpoint {path} is not a regular file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path, device="cpu")
        if path.suffix in (".pt", ".pth"):
            mapped = _is_zip(path)
            return _tensors(path, torch.load(path, map_location="cpu", weights_only=True, mmap=mapped))
    except OSError as error:
        raise ModelError(f"checkpoint {path}: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        raise ModelError(f"checkpoint {path} holds objects that could run code: refused") from error
    except (SafetensorError, RuntimeError, EOFError) as error:
        raise ModelError(f"checkpoint {path} cannot be read: {error}") from error
    raise ModelError(f"checkpoint {path}: expected a .safetensors, .pt or .pth file")


def file_note(path: Path) -> str | None:
    """The note under `retinad` in the metadata of a `.safetensors` file, as `retinad convert` writes it.

    Returns:
        None if there is no note, or the file has another format.

    Raises:
        ModelError: the file is missing or damaged.
    """
    if path.suffix != ".safetensors":
        return None
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            note: str | None = (file.metadata() or {}).get("retinad")
    except OSError as error:
        raise ModelError(f"checkpoint {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise ModelError(f"checkpoint {path} cannot be read: {error}") from error
    return note


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(max(len(ZIP_START), len(OLD_START)))
    if not start.startswith((ZIP_START, OLD_START)):
        raise ModelError(f"checkpoint {path} was not written by torch.save")
    return start.startswith(ZIP_START)


def _tensors(path: Path, loaded: object) -> Mapping[str, Tensor]:
    if isinstance(loaded, dict) and isinstance(loaded.get("model"), dict):
        loaded = loaded["model"]
    if not isinstance(loaded, dict) or not all(isinstance(k, str) and _is_plain(v) for k, v in loaded.items()):
        raise ModelError(f"checkpoint {path}: expected a state dict of dense tensors, at the top or under `model`")
    return loaded


def _is_plain(value: object) -> bool:
    # Sparse, quantized and meta tensors have a shape too, but no plain numbers.
    return isinstance(value, Tensor) and value.layout is torch.strided and not (value.is_quantized or value.is_meta)
