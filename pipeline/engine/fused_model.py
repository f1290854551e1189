"""The aggregator by fused kernels: the weights and the numbers of `Aggregator`, a quarter of its launches.

Whatever changes from step to step is read on the device (`StepTables`), nothing is read back and no shape depends on
it, so a step of one frame a stream can be captured as a CUDA graph and replayed for ever. The residual stream stays
float32; what goes into a linear layer is in that layer's number format. Differences to `Aggregator` are in rounding
only: it rounds to that format at the same places, except within a kernel.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from retinad.kernels.attention import attend_ranges
from retinad.kernels.fused.add_norm import add, add_norm, norm
from retinad.kernels.fused.kv_copy import evict
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
"""Mixes normalised tokens [F, P, C] of a block; gives its branch of the residual sum, contiguous."""


class Memory(Protocol):
    """One step of some streams' memory."""

    def layer(self, index: int) -> Tensor:
        """An attention layer's keys and values [2, T, H, D]."""

    def settle(self, index: int) -> None:
        """Called after each attention layer."""

    def scan(self, layer: int, attention: KimiDeltaAttention, tokens: Tensor) -> Tensor:
        """Tokens [F, P, C] through a `kda` layer, from its streams' states on; gives the same shape."""


@dataclass(frozen=True, slots=True)
class _Step:
    # What all global blocks of a step share.
    memory: Memory
    tables: StepTables
    across: RotaryTables


class FusedAggregator:
    """Runs the weights of an aggregator.

    Args:
        model: holds the weights, which may be on any device; on a CPU the kernels' references run, slowly.
    """

    def __init__(self, model: Aggregator) -> None:
        self._model = model
        self._indices = model.network.memory_indices

    def __call__(
        self, images: Tensor, tables: StepTables, memory: Memory, layers: tuple[int, ...]
    ) -> Iterator[LayerOutput]:
        """Run a step, see `Aggregator.forward`, as far as its output is asked for: each is valid until the next is.

        Args:
            images: float32 [F, 3, h, w], RGB in [0, 1].
            tables: of the step, on the images' device.
            memory: of the step's streams. Keys and values of the step go where the tables say.
            layers: pairs of blocks whose output is wanted, ascending.
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
        """What a step of frames with so many patches reads besides weights, made if it is not there.

        Others may let it go: whoever captures the step must ask for it before, and keep it for as long as the graph.
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
    # Blocks over the residual stream float32 [F, P, C], which is changed in place; yields after each of them.
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
        evict(memory, step.tables.copies)
        append = Append(memory, step.tables.slots)
        qk_norm_rope(packed, _head_norm(attention), step.across, query=query, append=append)
        attended = attend_ranges(query, memory, step.tables.ranges)
        step.memory.settle(index)
        out: Tensor = attention.proj(attended.flatten(-2))
        return out

    return mix


def _rotary(rotation: Rotation) -> RotaryTables:
    # [F or 1, P, 1, D/2], or [F or 1, P, 1, 2, D/4] in the halves layout, to [F or 1, P, D/2].
    cos, sin = (part.flatten(2).contiguous() for part in (rotation.cos, rotation.sin))
    return RotaryTables(cos, sin, rotation.pairs)


def _head_norm(attention: Attention) -> HeadNorm | None:
    query, key = attention.q_norm, attention.k_norm
    if query is None or key is None:
        return None
    return HeadNorm(query.weight, query.bias, key.weight, key.bias, query.eps)


def _attention(block: Block) -> Attention:
    assert isinstance(block.attn, Attention), "the block was made with it"
    return block.attn


def _blocks(modules: nn.ModuleList) -> list[Block]:
    blocks = [module for module in modules if isinstance(module, Block)]
    assert len(blocks) == len(modules), "nothing else is in the list"
    return blocks
