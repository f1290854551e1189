"""One step of some streams' memories: what is the same for every backend, which only says how attention is computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from torch import Tensor

from .ledger import Move, StepPlan
from .page_table import Sight
from .pool import Pool
from .state import StreamState

Attend = Callable[[int, Tensor], Tensor]
"""Attention in a layer (its index) of the step's queries [R, H, D] to what their streams see; gives the same shape."""


class Backend(Protocol):
    """A way to compute softmax(q k^T / sqrt(D)) v over places of a pool; no mask, queries of a step see each other."""

    def plan(self, pool: Pool, sights: Sequence[Sight]) -> Attend:
        """Prepare a step, once for all its layers, from host values only.

        Args:
            pool: where keys and values stand when the result is called; its spans stay where they are until then.
            sights: what each stream's queries see; the queries come in this order.

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
        sights = tuple(Sight.of(span, plan) for span, plan in zip(spans, self.plans, strict=True))
        self._attend = backend.plan(self._pool, sights)
        self._appended = self._committed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._appended and not self._committed:
            for part in self._parts:
                if part.plan.keyframe:
                    part.state.reset()

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store keys and values [F, P, H, D] of a layer, normalised and rotated, in the pool's dtype."""
        self._appended = True
        buffer, index = self._pool.layer(layer), 0
        for part in self._parts:
            _move(buffer, part.start, part.plan.evictions)
            for place in part.plan.places:
                begin = part.start + place
                buffer[0, begin : begin + key.shape[1]] = key[index]
                buffer[1, begin : begin + key.shape[1]] = value[index]
                index += 1

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """Attention of queries [F, P, H, D], in the pool's dtype, to what their streams see; gives the same."""
        out = self._attend(layer, query.flatten(0, 1)).view(query.shape)
        buffer = self._pool.layer(layer)
        for part in self._parts:
            _move(buffer, part.start, part.plan.late_evictions)
        return out

    def commit(self) -> None:
        """Make the step last: call once, after the last layer."""
        for part in self._parts:
            part.state.ledger = part.plan.after
        self._committed = True


def _move(buffer: Tensor, start: int, moves: tuple[Move, ...]) -> None:
    for move in moves:
        source, target = start + move.source, start + move.target
        buffer[:, target : target + move.tokens] = buffer[:, source : source + move.tokens]
