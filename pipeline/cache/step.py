"""One step of some streams' memories: what is the same for every backend, which only says how attention is computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import torch
from torch import Tensor

from ..model.delta_attention import KimiDeltaAttention
from .kv_pool import KVCachePool
from .page_table import VisibleRanges, visible_ranges
from .scan_order import SKIP, StreamScan, WaveTensors, waves
from .step_tables import StepTables, TableRow
from .stream_cache import StreamState
from .window import CopyOp, StepPlan

Attend = Callable[[int, Tensor], Tensor]
"""Attention in a layer (its index) of the step's queries [R, H, D] to what their streams see; gives the same shape."""


class Backend(Protocol):
    """A way to compute softmax(q k^T / sqrt(D)) v over places of a pool, without a mask.

    Attributes:
        whole_pages: whether it reads pages only, the last of them in part: it cannot see a history that goes round in
            its places, as that of an endless stream does when steps have several of its frames.
    """

    whole_pages: bool

    def plan(self, pool: KVCachePool, sights: Sequence[VisibleRanges]) -> Attend:
        """Prepare a step, once for all its layers, from host values only.

        Args:
            pool: where keys and values stand when the result is called; its spans stay where they are until then.
            sights: what the queries see; they come in this order.

        Raises:
            ValueError: the backend cannot attend like this.
        """


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    state: StreamState
    plan: StepPlan
    start: int


class Step:
    """Keys and values go in layer by layer, attention comes out, `commit` makes it last.

    A context manager: a step that is left without `commit` leaves each stream as it was where none of its kept places
    may have been overwritten (nothing appended yet, or not a keyframe), and else empty. So no stream is ever half
    written, wherever an exception comes from. A layer is complete after its `attend`, and `commit` cannot fail.

    Args:
        states: the streams' states, each once, all of one pool.
        frames: frames of each stream in this step. The frames of all streams, one after the other, are the F frames of
            `append` and `attend`.
        backend: how attention is computed.

    Raises:
        ValueError: a stream cannot take so many frames in this step, or the backend cannot attend like this. Nothing
            has changed.
    """

    def __init__(self, states: Sequence[StreamState], frames: Sequence[int], backend: Backend) -> None:
        self._pool = states[0].pool
        if any(state.pool is not self._pool for state in states) or len(set(map(id, states))) < len(states):
            raise ValueError("a step takes streams of one pool, each once")
        self.plans = tuple(state.ledger.plan(count) for state, count in zip(states, frames, strict=True))
        spans = [state.span for state in states]
        self._parts = tuple(_Part(*part) for part in zip(states, self.plans, (s.start for s in spans), strict=True))
        seen = [sight for span, plan in zip(spans, self.plans, strict=True) for sight in visible_ranges(span, plan)]
        self._attend = backend.plan(self._pool, seen)
        self._waves: tuple[WaveTensors, ...] = ()
        self._written = self._committed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._written and not self._committed:
            for part in self._parts:
                if part.plan.keeps:
                    part.state.reset()

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store keys and values [F, P, H, D] of a layer, normalised and rotated, in the pool's dtype."""
        self._written = True
        buffer, index = self._pool.layer(layer), 0
        for part in self._parts:
            _move(buffer, part.start, part.plan.evictions)
            for frame in part.plan.frames:
                begin = part.start + frame.place
                buffer[0, begin : begin + key.shape[1]] = key[index]
                buffer[1, begin : begin + key.shape[1]] = value[index]
                index += 1

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """Attention of queries [F, P, H, D], in the pool's dtype, to what their streams see; gives the same."""
        out = self._attend(layer, query.flatten(0, 1)).view(query.shape)
        self.settle(layer)
        return out

    def layer(self, index: int) -> Tensor:
        """An attention layer's keys and values [2, T, H, D], of all streams of the pool."""
        return self._pool.layer(index)

    def settle(self, index: int) -> None:
        """Do what remains in an attention layer once its keys and values are in and were attended to."""
        buffer = self._pool.layer(index)
        for part in self._parts:
            _move(buffer, part.start, part.plan.late_evictions)

    def fill(self, tables: StepTables) -> None:
        """Write down this step for kernels that will read it on the device, which counts as writing to the memories."""
        self._written = True
        rows = [row for part in self._parts for row in self._table_rows(part)]
        moves = [
            CopyOp(part.start + move.source, part.start + move.target, move.tokens)
            for part in self._parts
            for move in part.plan.evictions
        ]
        tables.fill(rows, moves)

    @property
    def single(self) -> bool:
        """Whether it is one later frame of each stream, with nothing left for `settle`."""
        return all(len(part.plan.frames) == 1 and not part.plan.first for part in self._parts)

    def scan(self, layer: int, attention: KimiDeltaAttention, tokens: Tensor) -> Tensor:
        """A `kda` layer (its index among those) over tokens [F, P, C], from its streams' states, which move on.

        Args:
            layer: index among the `kda` layers.
            attention: the layer.
            tokens: of all frames of the step.

        Returns:
            [F, P, C] in the dtype of the layer's weights.
        """
        self._written = True
        state = self._pool.states.layer(layer)
        fresh = [self._row(part) for part in self._parts if part.plan.first and not part.state.carried]
        if fresh:
            state.reset(torch.tensor(fresh).to(tokens.device, non_blocking=True))
        if not self._waves:
            scans = waves([_scan(part, self._row(part)) for part in self._parts])
            self._waves = tuple(WaveTensors.of(wave, tokens.shape[1], tokens.device) for wave in scans)
        outputs = []
        for wave in self._waves:
            chosen = tokens if len(self._waves) == 1 else tokens[wave.frames]
            rows = chosen.flatten(0, 1)[None]
            out, _ = attention(rows, state, wave.sequences, read_only=wave.reads_only)
            outputs.append(out.view(chosen.shape))
        return outputs[0] if len(outputs) == 1 else _in_order(self._waves, outputs)

    def commit(self) -> None:
        """Make the step last: call once, after the last layer."""
        for part in self._parts:
            part.state.ledger = part.plan.after
            part.state.carried = False
        self._committed = True

    def _row(self, part: _Part) -> int:
        return self._pool.row(part.state.owner)

    def _table_rows(self, part: _Part) -> list[TableRow]:
        scale_frames = part.plan.after.layout.scale_frames
        row = self._row(part)
        return [
            TableRow(
                time=frame.number,
                later=frame.number > 0,
                after_scale=frame.number >= scale_frames,
                place=part.start + frame.place,
                ranges=tuple((part.start + start, part.start + stop) for start, stop in frame.visible),
                row=row,
                written=row if frame.keyframe else SKIP,
            )
            for frame in part.plan.frames
        ]


def _scan(part: _Part, row: int) -> StreamScan:
    return StreamScan(part.plan, row, reads_only=part.plan.first and part.state.carried)


def _in_order(done: Sequence[WaveTensors], outputs: Sequence[Tensor]) -> Tensor:
    # Outputs of frames, wave by wave, in the order of the step.
    joined = torch.cat(list(outputs))
    return torch.empty_like(joined).index_copy_(0, torch.cat([wave.frames for wave in done]), joined)


def _move(buffer: Tensor, start: int, moves: tuple[CopyOp, ...]) -> None:
    for move in moves:
        source, target = start + move.source, start + move.target
        buffer[:, target : target + move.tokens] = buffer[:, source : source + move.tokens]
