"""Weights: from a file, checked key by key, or random ones from a seed. Nothing of a file is ever executed."""

import hashlib
import math
import pickle
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..config import ModelConfig
from ..errors import ModelError
from .aggregator import Aggregator
from .devices import torch_dtype

AGGREGATOR = "aggregator."
HEADS = ("camera_head.", "depth_head.", "point_head.")
UNUSED = "patch_embed.mask_token"
NAMED_KEYS = 10
"""Keys that an error message names at most."""


def load_model(config: ModelConfig) -> tuple[Aggregator, str]:
    """The model on its device, and what its weights are called: `sha256:<hex>` of the file, or `random:<seed>`.

    A file's tensors are mapped into memory and go to the device one by one, so memory peaks at the weights plus one
    tensor. On the CPU in the file's own number format they stay mapped: replace such a file by renaming a new one over
    it, never by writing into it.

    Raises:
        ModelError: the file cannot be read, or does not hold exactly this network's weights.
        ValueError: the network's shape is impossible.
    """
    with torch.device("meta"):
        model = Aggregator(config.network, torch_dtype(config.dtype))
    device = torch.device(config.device)
    if config.checkpoint is None:
        weights, label = random_weights(model, config.seed), f"random:{config.seed}"
    else:
        weights, label = checkpoint_weights(model, config.checkpoint), f"sha256:{file_sha256(config.checkpoint)}"
    wanted = model.state_dict()
    placed = {name: value.to(device=device, dtype=wanted[name].dtype) for name, value in weights}
    model.load_state_dict(placed, assign=True)
    return model.to(device).requires_grad_(False).eval(), label


def random_weights(model: Aggregator, seed: int) -> Iterable[tuple[str, Tensor]]:
    """Names and float32 values for all of a model's weights, the same for the same seed on every machine.

    Each weight is drawn by its own generator, so that a weight does not depend on which others there are.
    """
    for name, value in model.state_dict().items():
        generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
        yield name, torch.from_numpy(_random_weight(name, tuple(value.shape), generator))


def checkpoint_weights(model: Aggregator, path: Path) -> Iterable[tuple[str, Tensor]]:
    """Names and mapped values, in the file's number format, for all of a model's weights.

    Takes a bare aggregator, or a full checkpoint whose aggregator stands under `aggregator.`; the weights of heads are
    skipped.

    Raises:
        ModelError: the file cannot be read; or keys are missing, unexpected or of the wrong shape: it names up to ten.
    """
    found = _aggregator_keys(read_state_dict(path))
    wanted = model.state_dict()
    problems = [
        *(f"missing {name}" for name in wanted if name not in found),
        *(f"unexpected {name}" for name in found if name not in wanted),
        *(
            f"{name} has shape {tuple(found[name].shape)}, expected {tuple(value.shape)}"
            for name, value in wanted.items()
            if name in found and found[name].shape != value.shape
        ),
    ]
    if problems:
        raise ModelError(_describe(path, problems))
    return ((name, found[name]) for name in wanted)


def read_state_dict(path: Path) -> Mapping[str, Tensor]:
    """A file's tensors by key, mapped into memory: `.safetensors`, or `.pt` / `.pth`.

    A `.pt` file holds the state dict itself, or holds it under `model`.

    Raises:
        ModelError: the file is missing, damaged, of another kind, or holds anything but tensors and plain data.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path, device="cpu")
        if path.suffix in (".pt", ".pth"):
            return _tensors(path, torch.load(path, map_location="cpu", weights_only=True, mmap=True))
    except OSError as error:
        raise ModelError(f"checkpoint {path}: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        raise ModelError(f"checkpoint {path} holds more than tensors and could run code: refused") from error
    except (SafetensorError, RuntimeError, EOFError) as error:
        raise ModelError(f"checkpoint {path} cannot be read: {error}") from error
    raise ModelError(f"checkpoint {path}: expected a .safetensors, .pt or .pth file")


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tensors(path: Path, loaded: object) -> Mapping[str, Tensor]:
    if isinstance(loaded, dict) and isinstance(loaded.get("model"), dict):
        loaded = loaded["model"]
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ModelError(f"checkpoint {path}: expected a state dict of tensors, at the top or under `model`")
    return loaded


def _aggregator_keys(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    full = any(name.startswith(AGGREGATOR) for name in tensors)
    prefix = AGGREGATOR if full else ""
    own = {name.removeprefix(prefix): value for name, value in tensors.items() if not name.startswith(HEADS)}
    own.pop(UNUSED, None)
    return own


def _describe(path: Path, problems: list[str]) -> str:
    named = "; ".join(problems[:NAMED_KEYS])
    more = f"; and {len(problems) - NAMED_KEYS} more" if len(problems) > NAMED_KEYS else ""
    return f"checkpoint {path} does not fit the network, {len(problems)} keys differ: {named}{more}"


def _random_weight(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    leaf, parent = name.split(".")[-1], name.split(".")[-2:][0]
    if leaf == "gamma":
        return np.full(shape, 0.5, np.float32)
    if "norm" in parent and leaf == "weight":
        return np.ones(shape, np.float32)
    if leaf == "bias":
        return np.zeros(shape, np.float32)
    # A linear layer keeps the variance of what goes through it; tokens and positions are of the size of the patches.
    fan_in = math.prod(shape[1:]) if leaf == "weight" else 4
    return generator.standard_normal(shape, dtype=np.float32) / np.float32(math.sqrt(fan_in))
