"""Draws random weights from a seed, with the same numbers on every machine."""

import math
import zlib
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor


def random_weights(wanted: Mapping[str, Tensor], seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yield a name and random float32 values for each tensor of a state dict. Only names and shapes of `wanted` matter.

    Each tensor has its own generator, so its values do not depend on which other tensors there are.
    """
    for name, value in wanted.items():
        yield name, torch.from_numpy(random_weight(name, tuple(value.shape), seeded_generator(name, seed)))


def seeded_generator(name: str, seed: int) -> np.random.Generator:
    """The random generator for the tensor `name`."""
    return np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))


def random_weight(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Draw the float32 values of one tensor. The tensor's name determines their distribution."""
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
    # Kimi Delta Attention's log decay per token is -exp(A_log) softplus(f + dt_bias). Memories last 10 to 1000 tokens.
    if leaf == "A_log":
        return np.zeros(shape, np.float32)
    steps = np.exp(generator.uniform(math.log(1e-3), math.log(1e-1), shape))
    return np.log(np.expm1(steps)).astype(np.float32)
