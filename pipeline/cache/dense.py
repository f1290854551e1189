"""The dense backend: a stream's keys and values in one tensor, read by PyTorch's attention, on any device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .ledger import Ledger, Move


@dataclass(slots=True)
class StreamState:
    """All that a model remembers of one stream, apart from the weights. Only `DenseStep` writes to it.

    Attributes:
        ledger: which frame stands where.
        storage: [L, 2, N, H, D], keys (normalised and rotated) and values of each layer, in the model's dtype. Only the
            places that the ledger calls visible hold anything.
    """

    ledger: Ledger
    storage: Tensor

    @classmethod
    def allocate(
        cls, ledger: Ledger, layers: int, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> "StreamState":
        """Storage for an empty stream.

        Raises:
            torch.OutOfMemoryError: the device has no room for it.
        """
        shape = (layers, 2, ledger.layout.tokens, heads, head_dim)
        return cls(ledger, torch.empty(shape, dtype=dtype, device=device))

    @property
    def nbytes(self) -> int:
        """Bytes of storage, used or not; constant over a stream's life."""
        return self.storage.nbytes

    def copy(self) -> "StreamState":
        """A state that goes on from here independently."""
        return StreamState(self.ledger, self.storage.clone())

    def reset(self) -> None:
        """Forget everything; the storage is kept."""
        self.ledger = Ledger(self.ledger.layout)


class DenseStep:
    """One step of one or more streams: keys and values go in layer by layer, attention comes out, `commit` ends it.

    A step that is dropped before `commit` leaves its streams' ledgers as they were, but may have overwritten the oldest
    frame of the window, so the caller resets those streams.

    Args:
        states: the streams' states, each once.
        frames: frames of each stream in this step. The frames of all streams, one after the other, are the F frames of
            `append` and `attend`.

    Raises:
        ValueError: a stream cannot take so many frames in this step.
    """

    def __init__(self, states: Sequence[StreamState], frames: Sequence[int]) -> None:
        self._states = tuple(states)
        self.plans = tuple(state.ledger.plan(count) for state, count in zip(states, frames, strict=True))
        for state, plan in zip(self._states, self.plans, strict=True):
            _move(state.storage, plan.evictions)

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store keys and values [F, P, H, D] of a layer, normalised and rotated, in the storage's dtype."""
        for index, (storage, place) in enumerate(self._places()):
            stop = place + key.shape[1]
            storage[layer, 0, place:stop] = key[index]
            storage[layer, 1, place:stop] = value[index]

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """Attention of queries [F, P, H, D], in the storage's dtype, to what their streams see; gives the same.

        softmax(q k^T / sqrt(D)) v; no mask, since the tokens of a step all see each other.
        """
        counts = [len(plan.places) for plan in self.plans]
        outputs = [
            _attend(part, state.storage[layer, :, slice(*plan.visible)])
            for part, state, plan in zip(query.split_with_sizes(counts), self._states, self.plans, strict=True)
        ]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def commit(self) -> None:
        """Make the step last: call once, after the last layer."""
        for state, plan in zip(self._states, self.plans, strict=True):
            _move(state.storage, plan.late_evictions)
            state.ledger = plan.after

    def _places(self) -> Iterator[tuple[Tensor, int]]:
        for state, plan in zip(self._states, self.plans, strict=True):
            for place in plan.places:
                yield state.storage, place


def _attend(query: Tensor, memory: Tensor) -> Tensor:
    # query [f, P, H, D]; memory [2, n, H, D]
    key, value = memory.transpose(1, 2).unsqueeze(1).unbind(0)  # [1, H, n, D] each
    flat = query.flatten(0, 1).transpose(0, 1).unsqueeze(0)  # [1, H, f P, D]
    out = functional.scaled_dot_product_attention(flat, key, value)
    return out.squeeze(0).transpose(0, 1).reshape(query.shape)


def _move(storage: Tensor, moves: tuple[Move, ...]) -> None:
    for move in moves:
        kept = storage[:, :, move.source : move.source + move.tokens]
        storage[:, :, move.target : move.target + move.tokens] = kept
