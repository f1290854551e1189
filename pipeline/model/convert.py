"""Converts an attention checkpoint, for training, into a hybrid in which some global blocks use Kimi Delta Attention.

The new blocks are useless without training. The projections of queries, keys, values and outputs are copied. Weights
that only a delta block has are initialised so that the block passes on and remembers its current input:

* convolutions: the tap of the current token is 1, the others are 0;
* decay: -log decay per token = softplus(dt_bias), since A_log = 0 and f_proj returns 0. dt_bias is chosen so that the
  state halves in `half_life_tokens` tokens. Only dt_bias makes the decay slow: an f_proj output of the same magnitude,
  about 11, still opens the decay gate, whereas a small exp(A_log) would keep the gate shut for any input;
* beta: b_proj returns 0, so beta is sigmoid(0) = 0.5;
* output gate: g_proj returns its bias, and the weight of o_norm cancels the sigmoid of that bias.

The weights of b_proj and of the second layers of f_proj and g_proj are 0. The first layers of f_proj and g_proj are
random: if both layers were 0, neither would get a gradient.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from ..config import MixerName, NetworkConfig
from ..errors import ModelError
from ..files.tensors import Entry, dtype_name, tensor_bytes, write_tensor_file
from .aggregator import Aggregator
from .key_matching import match_checkpoint
from .mismatch_hints import AGGREGATOR
from .random_init import seeded_generator
from .weight_files import file_sha256, read_state_dict

MIXERS: tuple[MixerName, ...] = get_args(MixerName)

GATE_BIAS = 3.0
"""Bias of the output gate: its sigmoid, 0.953, is close to 1 but not saturated."""

TAPS = 4
"""Width of the short convolutions, in tokens."""

LOST = ("attn.qkv.bias", "attn.q_norm", "attn.k_norm", "attn.proj.bias", "the rotary positions")
"""The parts of an attention block that a delta block does not use."""

NOTE = (
    "converted from an attention checkpoint and NOT trained since: the delta blocks start from its projections, and "
    "the features differ from those of the source"
)

_GLOBAL = re.compile(r"global_blocks\.(\d+)\.attn\.(.+)")


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion.

    Attributes:
        blocks: indices of the global blocks that became delta blocks.
        half_life_tokens: number of tokens in which a delta block's state halves, before training.
        copied: number of tensors that are copied unchanged.
        note: a warning about the result, also in the file's metadata.
    """

    blocks: tuple[int, ...]
    half_life_tokens: float
    copied: int
    note: str


def convert(
    source: Path,
    target: Path,
    network: NetworkConfig,
    mixers: Sequence[MixerName],
    *,
    half_life_tokens: float,
    seed: int = 0,
) -> Conversion:
    """Convert a checkpoint of attention blocks into one whose global blocks follow a pattern of mixers.

    The source's tensors are memory-mapped and written one by one. Tensors of the camera, depth and point heads
    and the prefix of the keys do not change. Projections keep the source's number format; the parameters of the decay
    and the weights of the norm are float32.

    Args:
        source: a checkpoint that `checkpoint_weights` accepts.
        target: the safetensors file, which is written atomically.
        network: the shape of the source's network.
        mixers: the mixers of the global blocks: a pattern that repeats and contains at least one `kda`.
        half_life_tokens: number of tokens in which a delta block's state halves, before training.
        seed: seed of the random layers.

    Raises:
        ModelError: the source cannot be read or does not hold exactly this network (CheckpointError); or the target
            cannot be written.
        ValueError: the pattern names no delta block, or the half-life is not positive.
    """
    blocks = _delta_blocks(mixers, network)
    if half_life_tokens <= 0:
        raise ValueError(f"half_life_tokens must be more than 0, got {half_life_tokens}")
    with torch.device("meta"):
        model = Aggregator(replace(network, mixers=("attention",)), torch.float32)
    tensors = read_state_dict(source)
    prefix = match_checkpoint(model.state_dict(), tensors, source).prefix
    gates = _Gates(network, half_life_tokens, seed)
    entries: list[Entry] = []
    copied = 0
    for name, value in tensors.items():
        made = _convert_tensor(name, prefix, value, blocks, gates)
        entries += [_entry(key, part) for key, part in made]
        copied += [key for key, _ in made] == [name]
    conversion = Conversion(blocks, half_life_tokens, copied, NOTE)
    try:
        write_tensor_file(target, _metadata(source, mixers, conversion), entries)
    except OSError as error:
        raise ModelError(f"{target} cannot be written: {error.strerror or error}") from error
    return conversion


def gate_bias(half_life_tokens: float) -> float:
    """The dt_bias for this half-life with A_log = 0: softplus(dt_bias) = ln 2 / half_life_tokens."""
    return math.log(math.expm1(math.log(2.0) / half_life_tokens))


def _delta_blocks(mixers: Sequence[MixerName], network: NetworkConfig) -> tuple[int, ...]:
    target = replace(network, mixers=tuple(mixers)).global_mixers
    blocks = tuple(number for number, mixer in enumerate(target) if mixer == "kda")
    if not blocks:
        raise ValueError(
            f"expected a pattern that gives kda to at least one of {network.depth} blocks, got {','.join(mixers)}"
        )
    return blocks


def _convert_tensor(
    name: str, prefix: str, value: Tensor, blocks: tuple[int, ...], gates: "_Gates"
) -> list[tuple[str, Tensor]]:
    # The source's tensor itself, tensors of a delta block, or nothing.
    prefix += AGGREGATOR if name.startswith(prefix + AGGREGATOR) else ""
    match = _GLOBAL.fullmatch(name.removeprefix(prefix))
    if match is None or int(match[1]) not in blocks:
        return [(name, value)]
    block = f"{prefix}global_blocks.{match[1]}.attn."
    match match[2]:
        case "qkv.weight":
            parts = zip(("q_proj", "k_proj", "v_proj"), value.chunk(3), strict=True)
            projections = [(f"{block}{part}.weight", rows) for part, rows in parts]
            return projections + [(block + key, fresh) for key, fresh in gates.of(match[1], value.dtype)]
        case "proj.weight":
            return [(f"{block}o_proj.weight", value)]
    return []


@dataclass(frozen=True, slots=True)
class _Gates:
    # The weights of a delta block besides its projections; see the module's docstring.
    network: NetworkConfig
    half_life_tokens: float
    seed: int

    def of(self, block: str, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        channels, heads = self.network.channels, self.network.heads
        width = channels // heads
        present = torch.zeros(channels, 1, TAPS, dtype=dtype)
        present[:, :, -1] = 1
        for part in "qkv":
            yield f"{part}_conv1d.weight", present
        for part in "fg":
            yield f"{part}_proj.0.weight", self._random(f"{block}.{part}_proj.0.weight", (width, channels)).to(dtype)
            yield f"{part}_proj.1.weight", torch.zeros(channels, width, dtype=dtype)
        yield "g_proj.1.bias", torch.full((channels,), GATE_BIAS, dtype=dtype)
        yield "b_proj.weight", torch.zeros(heads, channels, dtype=dtype)
        yield "A_log", torch.zeros(heads)
        yield "dt_bias", torch.full((channels,), gate_bias(self.half_life_tokens))
        yield "o_norm.weight", torch.full((width,), 1 + math.exp(-GATE_BIAS))  # 1 / sigmoid

    def _random(self, name: str, shape: tuple[int, int]) -> Tensor:
        drawn = seeded_generator(name, self.seed).standard_normal(shape, dtype=np.float32)
        return torch.from_numpy(drawn / np.float32(math.sqrt(shape[1])))


def _entry(name: str, value: Tensor) -> Entry:
    return Entry(name, dtype_name(value.dtype), tuple(value.shape), (tensor_bytes(tensor) for tensor in (value,)))


def _metadata(source: Path, mixers: Sequence[MixerName], conversion: Conversion) -> dict[str, str]:
    return {
        "format": "pt",
        "retinad": f"{NOTE}. Lost in blocks {', '.join(map(str, conversion.blocks))}: {', '.join(LOST)}",
        "source": f"sha256:{file_sha256(source)}",
        "mixers": ",".join(mixers),
        "half_life_tokens": repr(conversion.half_life_tokens),
    }
