"""The parts of HorizonStream's network against outputs of the public implementation, see `horizon_golden`."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from retinad.pipeline.model.attention import EPS, Attention, attend_frame
from retinad.pipeline.model.blocks import Block
from retinad.pipeline.model.delta_attention import KimiDeltaAttention
from retinad.pipeline.model.delta_state import DeltaAttentionState, streaming_config
from retinad.pipeline.model.horizon_rope import PartialRotation, axis_tables, channel_partners, part_channels

from .horizon_golden import agree, fill_part, golden

C, HEADS, D = 192, 3, 64
FLOAT = torch.float32


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


def random_numbers(seed: int, shape: tuple[int, ...]) -> Tensor:
    """float32, from -1 to 1."""
    drawn = np.random.Generator(np.random.PCG64(seed)).random((1, *shape), dtype=np.float32)
    return torch.from_numpy(drawn) * 2 - 1


def rotation_at(positions: Sequence[tuple[int, int, int]]) -> PartialRotation:
    """The rotation of one frame whose tokens are at any (time, row, column)."""
    axes, parts = torch.tensor(positions, dtype=torch.float64).unbind(1), part_channels(D)
    tables = [axis_tables(axis, width) for axis, width in zip(axes, parts, strict=True)]
    cos, sin = (torch.cat(halves, dim=-1)[None, :, None] for halves in zip(*tables, strict=True))
    return PartialRotation(cos, sin, channel_partners(parts))


def test_the_rotary_embedding_agrees() -> None:
    turn = rotation_at(((0, 0, 0), (1, 1, 1), (1, 3, 2), (5, 2, 7), (21, 37, 27)))
    turned = turn.apply(random_numbers(34, (2, 5, D)).transpose(1, 2))
    agree(turned.transpose(1, 2), golden("horizon_parts")["rope_out"])


def test_a_gated_block_agrees() -> None:
    block = Block(Attention(C, HEADS, qk_norm=True, dtype=FLOAT, gate=True), C, 4 * C, eps=EPS, dtype=FLOAT)
    fill_part(block, "part.block.")
    turn = rotation_at([(3 * n % 7, (3 * n + 1) % 7, (3 * n + 2) % 7) for n in range(20)])

    def mix(layer: nn.Module, tokens: Tensor) -> Tensor:
        out: Tensor = layer(tokens, lambda q, k, v: attend_frame(turn.apply(q), turn.apply(k), v))
        return out

    agree(block(random_numbers(35, (79, C))[:, :20], mix)[0], golden("horizon_parts")["block_out"])


def test_a_delta_block_agrees_however_its_tokens_are_cut() -> None:
    """Cut after tokens 67 and 70, as the golden file's are: the third part is shorter than the convolution."""
    expected, tokens = golden("horizon_parts"), random_numbers(35, (79, C))
    block = Block(KimiDeltaAttention(streaming_config(C, HEADS), FLOAT), C, 4 * C, eps=EPS, dtype=FLOAT)
    fill_part(block, "part.kda.", ("attn.", "attn.gla."))
    states: list[DeltaAttentionState | None] = [None]

    def mix(layer: nn.Module, part: Tensor) -> Tensor:
        out: Tensor
        out, after = layer(part, states[-1])
        states.append(after)
        return out

    outputs = [block(part, mix) for part in tokens.tensor_split((67, 70), dim=1)]
    agree(torch.cat(outputs, dim=1)[0], expected["kda_out"])
    assert states[-1] is not None
    agree(states[-1].recurrent[0, :, ::8, ::8], expected["kda_state"])
