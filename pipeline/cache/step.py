"""One step of the caches of several streams. It does everything but the attention itself, which a backend computes."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from ..model.delta_attention import KimiDeltaAttention
from .attention_backend import AttentionBackend
from .page_table import visible_ranges
from .row_attention import RowAttention
from .scan_order import SKIP, StreamScan, WaveTensors, waves
from .step_tables import StepTables, TableRow
from .stream_cache import StreamState, planned
from .window import CopyOp, StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class _StreamStep:
    # One stream of a step; `start` is the first slot of its span.
    state: StreamState
    plan: StepPlan
    start: int


class Step:
    """Appends keys and values layer by layer and computes attention; `commit` makes the step take effect.

    A context manager. If it is left without `commit` after something was appended, streams with a keyframe in this step
    are emptied, since slots that they see may have been overwritten; all others are unchanged. So no stream is ever
    half written, wherever an exception occurs. A layer is complete after its `attend`, and `commit`
    cannot fail.

    Args:
        states: the streams, all of one pool; none may occur twice.
        frames: for each stream, its number of frames in this step, or its plan. The F frames of `append` and `attend`
            are those of the first stream, then those of the second, and so on.
        backend: computes attention.

    Raises:
        ValueError: a stream cannot have so many frames in this step, or the backend does not support the step. Nothing
            has changed.
    """

    def __init__(
        self, states: Sequence[StreamState], frames: Sequence[int | StepPlan], backend: AttentionBackend
    ) -> None:
        self._pool = states[0].pool
        if any(state.pool is not self._pool for state in states) or len(set(map(id, states))) < len(states):
            raise ValueError("the streams of a step must share one pool, and none may occur twice")
        self.plans = tuple(planned(state, count) for state, count in zip(states, frames, strict=True))
        spans = [state.span for state in states]
        self._streams = tuple(
            _StreamStep(state, plan, span.start) for state, plan, span in zip(states, self.plans, spans, strict=True)
        )
        pairs = list(zip(spans, self.plans, strict=True))
        self._rows: RowAttention | None = None
        if any(state.window.layout.slot_tokens for state in states):
            self._rows = RowAttention(self._pool, backend, pairs)
        else:
            self._attend = backend.plan(self._pool, [group for pair in pairs for group in visible_ranges(*pair)])
        self._waves: tuple[WaveTensors, ...] = ()
        self._written = self._committed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._written and not self._committed:
            for stream in self._streams:
                if stream.plan.keeps:
                    stream.state.reset()

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store a layer's keys and values [F, P, H, D], which must be normalised, rotated and in the pool's dtype."""
        self._written = True
        if self._rows is not None:
            self._rows.append(layer, key, value)
            return
        buffer, index = self._pool.layer(layer), 0
        for stream in self._streams:
            _copy(buffer, stream.start, stream.plan.evictions)
            for frame in stream.plan.frames:
                begin = stream.start + frame.slot
                buffer[0, begin : begin + key.shape[1]] = key[index]
                buffer[1, begin : begin + key.shape[1]] = value[index]
                index += 1

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """Compute the attention of queries [F, P, H, D], in the pool's dtype, to the visible slots.

        The result has the shape of the queries.
        """
        out = self._attend(layer, query.flatten(0, 1)).view(query.shape)
        self.settle(layer)
        return out

    def attend_rows(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `RowAttention.attend_rows`."""
        return self._row_attention.attend_rows(layer, query, key, value)

    def attend_slots(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `RowAttention.attend_slots`."""
        return self._row_attention.attend_slots(layer, query, key, value)

    @property
    def _row_attention(self) -> RowAttention:
        assert self._rows is not None, "the streams' layout has slots"
        return self._rows

    def layer(self, index: int) -> Tensor:
        """The keys and values [2, T, H, D] of one attention layer, for all streams of the pool."""
        return self._pool.layer(index)

    def settle(self, index: int) -> None:
        """Apply the late evictions of an attention layer. To be called after its attention."""
        buffer = self._pool.layer(index)
        for stream in self._streams:
            _copy(buffer, stream.start, stream.plan.late_evictions)

    def fill(self, tables: StepTables) -> None:
        """Fill the tables for kernels that run the step on the device. From now on the step counts as written."""
        self._written = True
        rows = [row for stream in self._streams for row in self._table_rows(stream)]
        copies = [
            CopyOp(stream.start + copy.source, stream.start + copy.target, copy.tokens)
            for stream in self._streams
            for copy in stream.plan.evictions
        ]
        tables.fill(rows, copies)

    @property
    def single(self) -> bool:
        """Whether each stream has one frame and is past its first step, so that `settle` has nothing to do."""
        return all(len(stream.plan.frames) == 1 and not stream.plan.first for stream in self._streams)

    def scan(self, layer: int, attention: KimiDeltaAttention, tokens: Tensor) -> Tensor:
        """Run a `kda` layer over tokens [F, P, C], reading and updating the streams' states.

        Args:
            layer: index of the layer among the `kda` layers.
            attention: the layer.
            tokens: tokens of all frames of the step.

        Returns:
            [F, P, C] in the dtype of the layer's weights.
        """
        self._written = True
        state = self._pool.states.layer(layer)
        fresh = [self._row(stream) for stream in self._streams if stream.plan.first and not stream.state.carried]
        if fresh:
            state.reset(torch.tensor(fresh).to(tokens.device, non_blocking=True))
        if not self._waves:
            scans = waves([_scan(stream, self._row(stream)) for stream in self._streams])
            self._waves = tuple(WaveTensors.of(wave, tokens.shape[1], tokens.device) for wave in scans)
        outputs = []
        for wave in self._waves:
            chosen = tokens if len(self._waves) == 1 else tokens[wave.frames]
            rows = chosen.flatten(0, 1)[None]
            out, _ = attention(rows, state, wave.sequences, read_only=wave.reads_only)
            outputs.append(out.view(chosen.shape))
        return outputs[0] if len(outputs) == 1 else _in_order(self._waves, outputs)

    def commit(self) -> None:
        """Make the step take effect. Call it once, after the last layer."""
        for stream in self._streams:
            stream.state.window = stream.plan.after
            stream.state.carried = False
        self._committed = True

    def _row(self, stream: _StreamStep) -> int:
        return self._pool.row(stream.state.owner)

    def _table_rows(self, stream: _StreamStep) -> list[TableRow]:
        scale_frames = stream.plan.after.layout.scale_frames
        row = self._row(stream)
        return [
            TableRow(
                time=frame.number,
                later=frame.number > 0,
                after_scale=frame.number >= scale_frames,
                slot=stream.start + frame.slot,
                ranges=tuple((stream.start + start, stream.start + stop) for start, stop in frame.visible),
                row=row,
                written=row if frame.keyframe else SKIP,
            )
            for frame in stream.plan.frames
        ]


def _scan(stream: _StreamStep, row: int) -> StreamScan:
    return StreamScan(stream.plan, row, reads_only=stream.plan.first and stream.state.carried)


def _in_order(done: Sequence[WaveTensors], outputs: Sequence[Tensor]) -> Tensor:
    # Reorders the outputs of all waves to the order of the frames in the step.
    joined = torch.cat(list(outputs))
    return torch.empty_like(joined).index_copy_(0, torch.cat([wave.frames for wave in done]), joined)


def _copy(buffer: Tensor, start: int, copies: tuple[CopyOp, ...]) -> None:
    for copy in copies:
        source, target = start + copy.source, start + copy.target
        buffer[:, target : target + copy.tokens] = buffer[:, source : source + copy.tokens]
