"""Weights: from a file, checked key by key, or random ones from a seed, or a patch embedding's from DINOv2's file."""

import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..config import ModelConfig
from ..errors import ModelError
from .aggregator import Aggregator
from .devices import torch_dtype
from .patch_embed import DINO_GRID
from .patch_features import PatchFeatures
from .weight_files import file_sha256, read_state_dict

AGGREGATOR = "aggregator."
BACKBONE = "patch_embed."
HEADS = ("camera_head.", "depth_head.", "point_head.")
MASK = "mask_token"
"""DINOv2's token for masked patches, of use in training only."""
_GLOBAL_BLOCK = re.compile(r"global_blocks\.\d{1,4}\.")
NAMED_KEYS = 10
"""Keys that an error message names at most."""

Network = Aggregator | PatchFeatures


def load_model(config: ModelConfig) -> tuple[Network, str]:
    """The model on its device, and what its weights are called.

    A file's tensors are mapped into memory and go to the device one by one, so memory peaks at the weights plus one
    tensor. On the CPU in the file's own number format they stay mapped: replace such a file by renaming a new one over
    it, never by writing into it.

    Returns:
        the model, and `sha256:<hex>` of the file, `random:<seed>`, or `sha256:<hex>+random:<seed>` where only the patch
        embedding is from a file.

    Raises:
        ModelError: the file cannot be read, or does not hold exactly this network's weights.
        ValueError: the network's shape is impossible.
    """
    device, model = torch.device(config.device), blank_model(config)
    weights, name = _weights(model, config), _name(model, config)
    wanted = model.state_dict()
    placed = {name: value.to(device=device, dtype=wanted[name].dtype) for name, value in weights}
    model.load_state_dict(placed, assign=True)
    return model.to(device).requires_grad_(False).eval(), name


def blank_model(config: ModelConfig) -> Network:
    """The model without any numbers: its weights are on the meta device.

    Raises:
        ValueError: the network's shape is impossible.
    """
    dtype = torch_dtype(config.dtype)
    with torch.device("meta"):
        return Aggregator(config.network, dtype) if config.network.depth else PatchFeatures(config.network, dtype)


def weights_name(config: ModelConfig) -> str:
    """What a model's weights are called, as `load_model` says; it reads their file, and loads nothing.

    Raises:
        ModelError: the file cannot be read.
        ValueError: the network's shape is impossible.
    """
    try:
        return _name(blank_model(config), config)
    except OSError as exc:
        raise ModelError(f"checkpoint {exc.filename}: {exc.strerror}") from exc


def random_weights(model: nn.Module, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Names and float32 values for all of a model's weights, the same for the same seed on every machine.

    Each weight is drawn by its own generator, so that a weight does not depend on which others there are.
    """
    return _random_weights(model.state_dict(), seed)


def checkpoint_weights(model: nn.Module, path: Path) -> Iterator[tuple[str, Tensor]]:
    """Names and values, in the file's number format, for all of a model's weights; a value is let go once it is given.

    Takes a bare aggregator, or a full checkpoint whose aggregator stands under `aggregator.`; the weights of heads are
    skipped.

    Raises:
        ModelError: the file cannot be read; or keys are missing, unexpected, of the wrong shape or no floats: it names
            up to ten.
    """
    found = _aggregator_keys(read_state_dict(path))
    wanted = model.state_dict()
    hint = "" if BACKBONE + "cls_token" in found else _hint_for_backbone(found)
    return _fitted(path, wanted, found, hint or _hint_for_network(wanted, found))


def backbone_weights(model: nn.Module, path: Path) -> Iterator[tuple[str, Tensor]]:
    """Names and values for a model's patch embedding, from a file with the keys of DINOv2's own releases.

    Raises:
        ModelError: the file cannot be read; keys are missing, unexpected or of the wrong shape: it names up to ten, and
            says what the file looks like; or the patch embedding is no DINOv2.
    """
    wanted = {name: value for name, value in model.state_dict().items() if name.startswith(BACKBONE)}
    if BACKBONE + "cls_token" not in wanted:
        raise ModelError(f"checkpoint {path} is for a DINOv2 patch embedding, and this network has none")
    tensors = read_state_dict(path)
    hint = _hint_for_checkpoint(tensors)
    found = {BACKBONE + name: value for name, value in tensors.items() if name != MASK}
    return _fitted(path, wanted, found, hint)


def _weights(model: Network, config: ModelConfig) -> Iterable[tuple[str, Tensor]]:
    if config.checkpoint is not None:
        return checkpoint_weights(model, config.checkpoint)
    if config.backbone_checkpoint is None:
        return random_weights(model, config.seed)
    weights = backbone_weights(model, config.backbone_checkpoint)
    return chain(weights, _random_weights(_not_of_backbone(model), config.seed))


def _name(model: Network, config: ModelConfig) -> str:
    random = f"random:{config.seed}"
    path = config.checkpoint or config.backbone_checkpoint
    if path is None:
        return random
    is_whole = config.checkpoint is not None or not _not_of_backbone(model)
    return f"sha256:{file_sha256(path)}" + ("" if is_whole else f"+{random}")


def _not_of_backbone(model: Network) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if not name.startswith(BACKBONE)}


def _aggregator_keys(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    full = any(name.startswith(AGGREGATOR) for name in tensors)
    prefix = AGGREGATOR if full else ""
    own = {name.removeprefix(prefix): value for name, value in tensors.items() if not name.startswith(HEADS)}
    own.pop(BACKBONE + MASK, None)
    return own


def _fitted(
    path: Path, wanted: Mapping[str, Tensor], found: dict[str, Tensor], hint: str
) -> Iterator[tuple[str, Tensor]]:
    problems = [
        *(f"missing {name}" for name in wanted if name not in found),
        *(f"unexpected {name}" for name in found if name not in wanted),
        *(
            f"{name} has shape {tuple(found[name].shape)}, expected {tuple(value.shape)}"
            for name, value in wanted.items()
            if name in found and found[name].shape != value.shape
        ),
        *(
            f"{name} is of {found[name].dtype}, expected a floating-point format"
            for name in wanted
            if name in found and not found[name].dtype.is_floating_point
        ),
    ]
    if problems:
        raise ModelError(_describe(path, problems, hint))
    return ((name, found.pop(name)) for name in wanted)


def _describe(path: Path, problems: list[str], hint: str) -> str:
    named = "; ".join(problems[:NAMED_KEYS])
    more = f"; and {len(problems) - NAMED_KEYS} more" if len(problems) > NAMED_KEYS else ""
    looks = f" ({hint})" if hint else ""
    return f"checkpoint {path} does not fit the network{looks}, {len(problems)} keys differ: {named}{more}"


def _hint_for_network(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str:
    # What of the network's shape a whole checkpoint contradicts.
    mine, its = _mixers(wanted), _mixers(tensors)
    if len(its) != len(mine):
        return f"it has {len(its)} global blocks, the network has {len(mine)}: is it for another preset or depth?"
    token = "camera_token"
    if token in tensors and token in wanted and tensors[token].shape[-1:] != wanted[token].shape[-1:]:
        channels = tensors[token].shape[-1]
        return f"it has {channels} channels, the network has {wanted[token].shape[-1]}: is it for another preset?"
    if its != mine:
        return f"its global blocks are {', '.join(its)}: set model.mixers"
    return ""


def _mixers(tensors: Mapping[str, Tensor]) -> list[str]:
    # Of each global block, by the names of its weights.
    blocks = {int(name.split(".")[1]) for name in tensors if _GLOBAL_BLOCK.match(name)}
    return ["kda" if f"global_blocks.{block}.attn.A_log" in tensors else "attention" for block in sorted(blocks)]


def _hint_for_backbone(tensors: Mapping[str, Tensor]) -> str:
    # What a file that was given as a whole checkpoint looks like.
    return "it looks like DINOv2 alone: set model.backbone_checkpoint" if "cls_token" in tensors else ""


def _hint_for_checkpoint(tensors: Mapping[str, Tensor]) -> str:
    # What a file that was given as a DINOv2 looks like.
    if any(name.startswith((AGGREGATOR, "frame_blocks.")) for name in tensors):
        return "it looks like a whole checkpoint: set model.checkpoint"
    if any(name.startswith(("embeddings.", "encoder.layer.")) for name in tensors):
        return "it looks like a conversion for another library: DINOv2's own released file is needed"
    if "cls_token" in tensors and "register_tokens" not in tensors:
        return "it looks like DINOv2 without registers: the file with them has reg4 in its name"
    positions = tensors.get("pos_embed")
    if positions is not None and positions.ndim == 3 and positions.shape[1] != 1 + DINO_GRID**2:
        return f"it has {positions.shape[1] - 1} positions: a grid of {DINO_GRID} x {DINO_GRID} is needed"
    return ""


def _random_weights(wanted: Mapping[str, Tensor], seed: int) -> Iterator[tuple[str, Tensor]]:
    for name, value in wanted.items():
        generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
        yield name, torch.from_numpy(_random_weight(name, tuple(value.shape), generator))


def _random_weight(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    leaf, parent = name.split(".")[-1], name.split(".")[-2:][0]
    if leaf == "gamma":
        return np.full(shape, 0.5, np.float32)
    if leaf in ("A_log", "dt_bias"):
        return _random_decay(leaf, shape, generator)
    if "norm" in parent and leaf == "weight":
        return np.ones(shape, np.float32)
    if leaf == "bias":
        return np.zeros(shape, np.float32)
    # A linear layer keeps the variance of what goes through it; tokens and positions are of the size of the patches.
    fan_in = math.prod(shape[1:]) if leaf == "weight" else 4
    return generator.standard_normal(shape, dtype=np.float32) / np.float32(math.sqrt(fan_in))


def _random_decay(leaf: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    # Kimi Delta Attention's log decay a token is -exp(A_log) softplus(f + dt_bias): memories of 10 to 1000 tokens.
    if leaf == "A_log":
        return np.zeros(shape, np.float32)
    steps = np.exp(generator.uniform(math.log(1e-3), math.log(1e-1), shape))
    return np.log(np.expm1(steps)).astype(np.float32)
