"""Random weights from a seed, the same numbers on every machine."""

import math
import zlib
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor


def random_weights(wanted: Mapping[str, Tensor], seed: int) -> Iterator[tuple[str, Tensor]]:
    """Names and float32 values for the tensors of a state dict; only their names and shapes matter.

    Each tensor is drawn by its own generator, so its values do not depend on which other tensors there are.
    """
    for name, value in wanted.items():
        yield name, torch.from_numpy(random_weight(name, tuple(value.shape), seeded_generator(name, seed)))


def seeded_generator(name: str, seed: int) -> np.random.Generator:
    """The generator of the tensor `name`."""
    return np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))


def random_weight(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """The values of one tensor, float32; their distribution follows from the tensor's name."""
    leaf, parent = name.split(".")[-1], name.split(".")[-2:][0]
    if leaf == "gamma":
        return np.full(shape, 0.5, np.float32)
    if leaf in ("A_log", "dt_bias"):
        return _draw_decay(leaf, shape, generator)
    if "norm" in parent and leaf == "weight":
        return np.ones(shape, np.float32)
    if leaf == "bias":
        return np.zeros(shape, np.float32)
    # A linear layer keeps the variance of its input; tokens and positions get the magnitude of the patch tokens.
    fan_in = math.prod(shape[1:]) if leaf == "weight" else 4
    return generator.standard_normal(shape, dtype=np.float32) / np.float32(math.sqrt(fan_in))


def _draw_decay(leaf: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    # Kimi Delta Attention's log decay per token is -exp(A_log) softplus(f + dt_bias): memories of 10 to 1000 tokens.
    if leaf == "A_log":
        return np.zeros(shape, np.float32)
    steps = np.exp(generator.uniform(math.log(1e-3), math.log(1e-1), shape))
    return np.log(np.expm1(steps)).astype(np.float32)
