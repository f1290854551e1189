"""Loads the model with weights from a file, random weights from a seed, or a released backbone amid random weights."""

from collections.abc import Iterable, Iterator
from itertools import chain

import torch
from torch import Tensor

from ..config import ModelConfig
from ..errors import CheckpointError
from .devices import torch_dtype
from .key_matching import BACKBONE, backbone_weights, checkpoint_weights
from .network import Network
from .presets import builder_for
from .random_init import random_weights as random_tensors
from .weight_files import file_sha256


def load_model(config: ModelConfig) -> tuple[Network, str]:
    """Load the model onto its device.

    A file's tensors are memory-mapped and copied to the device one by one, so peak memory is the size of the weights
    plus one tensor. On the CPU, in the file's own number format, the tensors stay mapped: replace such a file by
    renaming a new one over it, never by writing into it.

    Returns:
        the model and the name of its weights: `sha256:<hex>` of the file, `random:<seed>`, or
        `sha256:<hex>+random:<seed>` where only the backbone is from a file.

    Raises:
        CheckpointError: the file cannot be read, or does not hold exactly this network's weights.
        ValueError: the network's shape is impossible.
    """
    device, model = torch.device(config.device), blank_model(config)
    weights, name = _weights(model, config), _name(model, config)
    wanted = model.state_dict()
    placed = {name: value.to(device=device, dtype=wanted[name].dtype) for name, value in weights}
    model.load_state_dict(placed, assign=True)
    return model.to(device).requires_grad_(False).eval(), name


def blank_model(config: ModelConfig) -> Network:
    """The model with its weights on the meta device: shapes without values.

    Raises:
        ValueError: the network's shape is impossible.
    """
    build = builder_for(config.name)
    with torch.device("meta"):
        model = build(config.network, torch_dtype(config.dtype))
        model.add_heads(config.outputs)
    return model


def check_weights(config: ModelConfig) -> None:
    """Check that the configured file has exactly this network's weights, by their names and shapes alone.

    Raises:
        CheckpointError: the file cannot be read, or has other weights.
    """
    if config.checkpoint is not None or config.backbone_checkpoint is not None:
        _weights(blank_model(config), config)


def random_weights(model: Network, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Names and float32 values of all weights of a model, drawn from a seed."""
    return random_tensors(model.state_dict(), seed)


def weights_name(config: ModelConfig) -> str:
    """The name of a model's weights, as `load_model` returns it. Hashes the file of the weights, but loads nothing.

    Raises:
        CheckpointError: the file cannot be read.
        ValueError: the network's shape is impossible.
    """
    try:
        return _name(blank_model(config), config)
    except OSError as exc:
        raise CheckpointError(f"checkpoint {exc.filename}: {exc.strerror}") from exc


def _weights(model: Network, config: ModelConfig) -> Iterable[tuple[str, Tensor]]:
    if config.checkpoint is not None:
        return checkpoint_weights(model, config.checkpoint)
    if config.backbone_checkpoint is None:
        return random_weights(model, config.seed)
    weights = backbone_weights(model, config.backbone_checkpoint)
    return chain(weights, random_tensors(_outside_backbone(model), config.seed))


def _name(model: Network, config: ModelConfig) -> str:
    random = f"random:{config.seed}"
    path = config.checkpoint or config.backbone_checkpoint
    if path is None:
        return random
    is_whole = config.checkpoint is not None or not _outside_backbone(model)
    return f"sha256:{file_sha256(path)}" + ("" if is_whole else f"+{random}")


def _outside_backbone(model: Network) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if not name.startswith(BACKBONE)}
