"""The aggregator with fused kernels: the same weights and results as `Aggregator`, with a quarter of its launches.

Everything that changes from step to step is read from tables on the device (`StepTables`); nothing is read back to the
host, and no shape depends on the tables. So a step with one frame per stream can be captured as a CUDA graph and
replayed indefinitely. The residual stream stays float32; the input of a linear layer is in that layer's number format.
Results differ from those of `Aggregator` only by rounding: both round to that format at the same places, but
`Aggregator` also rounds between operations that are fused here into one kernel.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from retinad.kernels.attention import attend_ranges
from retinad.kernels.fused.add_norm import add, add_norm, norm
from retinad.kernels.fused.kv_copy import copy_slots
from retinad.kernels.fused.qk_norm_rope import qk_norm_rope
from retinad.kernels.fused.qk_norm_rope_types import Append, HeadNorm, RotaryTables

from ..cache.step_tables import StepTables
from ..model.aggregator import Aggregator
from ..model.attention import Attention, attend_frame
from ..model.blocks import Block
from ..model.delta_attention import KimiDeltaAttention
from ..model.network import LayerOutput
from ..model.patch_embed import TransformerPatches
from ..model.rope import Rotation, rotation_3d

Mix = Callable[[Tensor], Tensor]
"""Mixes a block's normalised tokens [F, P, C]; returns the block's branch of the residual sum, contiguous."""


class Memory(Protocol):
    """The memory of a step's streams."""

    def layer(self, index: int) -> Tensor:
        """The keys and values [2, T, H, D] of an attention layer."""

    def settle(self, index: int) -> None:
        """Finish an attention layer. Called after its attention."""

    def scan(self, layer: int, attention: KimiDeltaAttention, tokens: Tensor) -> Tensor:
        """Run tokens [F, P, C] through a `kda` layer, continuing the streams' states; returns the same shape."""


@dataclass(frozen=True, slots=True)
class _Step:
    # Shared by all global blocks of a step.
    memory: Memory
    tables: StepTables
    across: RotaryTables


class FusedAggregator:
    """Runs an aggregator with fused kernels.

    Args:
        model: holds the weights, on any device. On a CPU, the kernels' reference implementations run, which are slow.
    """

    def __init__(self, model: Aggregator) -> None:
        self._model = model
        self._indices = model.network.memory_indices

    def __call__(
        self, images: Tensor, tables: StepTables, memory: Memory, layers: tuple[int, ...]
    ) -> Iterator[LayerOutput]:
        """Run a step lazily, see `Aggregator.forward`: blocks run only when their outputs are asked for.

        Args:
            images: float32 [F, 3, h, w], RGB in [0, 1].
            tables: the step's tables, on the images' device. They say where keys and values are written.
            memory: the memory of the step's streams.
            layers: indices of the block pairs whose outputs are wanted, ascending.

        Yields:
            the outputs, each valid until the next one is asked for.
        """
        model, frames = self._model, len(images)
        rows, columns = (side // model.network.patch_size for side in images.shape[2:])
        grid = model.grid_tables(rows, columns)
        special = model.special_tokens
        tokens = images.new_empty(frames, special + rows * columns, model.network.channels)
        tokens[:, :special] = model.special_tokens_of(tables.later, tables.after_scale)
        self._embed((images - model.mean) / model.std, tokens[:, special:])
        across = grid.within
        if grid.spatial is not None:
            across = rotation_3d(tables.times.double(), grid.spatial, model.head_dim)
        step = _Step(memory, tables, _rotary(across))
        blocks = _run(tokens, self._pairs(_rotary(grid.within), step, layers[-1] + 1))
        for layer in range(layers[-1] + 1):
            next(blocks)
            frame = tokens.clone() if layer in layers else None
            next(blocks)
            if frame is not None:
                yield LayerOutput(layer, frame, tokens)

    def constants(self, rows: int, columns: int) -> tuple[object, ...]:
        """The tables, besides weights, that a step reads for frames with this grid. Computed if they are not cached.

        The cache may evict these tables. So they must be fetched before a capture, and kept as long as the graph.
        """
        embed = self._model.patch_embed
        return (self._model.grid_tables(rows, columns), *embed.grid_constants(rows, columns))

    def _embed(self, images: Tensor, out: Tensor) -> None:
        embed = self._model.patch_embed
        if not isinstance(embed, TransformerPatches):
            out.copy_(embed(images))
            return
        tokens = embed.tokens(images)
        for _ in _run(tokens, [(block, _alone(block)) for block in _blocks(embed.blocks)]):
            pass
        norm(tokens[:, embed.prefix_tokens :], embed.norm.weight, embed.norm.bias, out, embed.norm.eps)

    def _pairs(self, within: RotaryTables, step: _Step, count: int) -> list[tuple[Block, Mix]]:
        frame_blocks, global_blocks = _blocks(self._model.frame_blocks), _blocks(self._model.global_blocks)
        pairs: list[tuple[Block, Mix]] = []
        for layer in range(count):
            pairs.append((frame_blocks[layer], _within(frame_blocks[layer], within)))
            pairs.append((global_blocks[layer], _across(global_blocks[layer], step, self._indices[layer])))
        return pairs


def _run(tokens: Tensor, blocks: list[tuple[Block, Mix]]) -> Iterator[None]:
    # Runs blocks in place over the residual stream, float32 [F, P, C]; yields after each block.
    first = blocks[0][0]
    normed = torch.empty_like(tokens, dtype=first.mlp.fc1.weight.dtype)
    norm(tokens, first.norm1.weight, first.norm1.bias, normed, first.norm1.eps)
    for number, (block, mix) in enumerate(blocks):
        branch, after = mix(normed), block.norm2
        add_norm(tokens, branch, block.ls1.gamma, after.weight, after.bias, normed, after.eps)
        branch = block.mlp(normed)
        if number + 1 == len(blocks):
            add(tokens, branch, block.ls2.gamma)
        else:
            after = blocks[number + 1][0].norm1
            add_norm(tokens, branch, block.ls2.gamma, after.weight, after.bias, normed, after.eps)
        yield


def _alone(block: Block) -> Mix:
    attention = _attention(block)
    return lambda normed: attention(normed, attend_frame)


def _within(block: Block, rotary: RotaryTables) -> Mix:
    attention = _attention(block)

    def mix(normed: Tensor) -> Tensor:
        packed = attention.packed(normed)
        qk_norm_rope(packed, _head_norm(attention), rotary)
        out: Tensor = attention.proj(attend_frame(*packed.unbind(2)).flatten(-2))
        return out

    return mix


def _across(block: Block, step: _Step, index: int) -> Mix:
    layer = block.attn
    if isinstance(layer, KimiDeltaAttention):
        return lambda normed: step.memory.scan(index, layer, normed)
    attention = _attention(block)

    def mix(normed: Tensor) -> Tensor:
        packed, memory = attention.packed(normed), step.memory.layer(index)
        query = torch.empty_like(packed[:, :, 0], memory_format=torch.contiguous_format)
        copy_slots(memory, step.tables.copies)
        append = Append(memory, step.tables.slots)
        qk_norm_rope(packed, _head_norm(attention), step.across, query=query, append=append)
        attended = attend_ranges(query, memory, step.tables.ranges)
        step.memory.settle(index)
        out: Tensor = attention.proj(attended.flatten(-2))
        return out

    return mix


def _rotary(rotation: Rotation) -> RotaryTables:
    # Reshapes [F or 1, P, 1, D/2], or [F or 1, P, 1, 2, D/4] in the halves layout, to [F or 1, P, D/2].
    cos, sin = (part.flatten(2).contiguous() for part in (rotation.cos, rotation.sin))
    return RotaryTables(cos, sin, rotation.pairs)


def _head_norm(attention: Attention) -> HeadNorm | None:
    query, key = attention.q_norm, attention.k_norm
    if query is None or key is None:
        return None
    return HeadNorm(query.weight, query.bias, key.weight, key.bias, query.eps)


def _attention(block: Block) -> Attention:
    assert isinstance(block.attn, Attention), "its mixer is attention"
    return block.attn


def _blocks(modules: nn.ModuleList) -> list[Block]:
    blocks = [module for module in modules if isinstance(module, Block)]
    assert len(blocks) == len(modules), "the list holds blocks only"
    return blocks
