"""All that a model remembers of one stream: a ledger that says what stands where, and places of the shared pool."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .ledger import Ledger
from .pages import Span
from .pool import Pool


@dataclass(slots=True, eq=False)
class StreamState:
    """One stream's memory. A `Step` and a stream that goes on from a file write to it, and the methods here.

    Attributes:
        ledger: which frame stands where, counted from the stream's first place.
        pool: where its tokens are stored: keys, normalised and rotated, and values of each layer. Only the places that
            the ledger calls visible hold anything.
        owner: its number in the pool.
    """

    ledger: Ledger
    pool: Pool
    owner: int

    @classmethod
    def allocate(cls, pool: Pool, ledger: Ledger) -> "StreamState":
        """A stream whose ledger is given, usually an empty one, with places in the pool that hold nothing yet.

        Raises:
            AdmissionError: the pool has no room for it.
        """
        return cls(ledger, pool, pool.allocate(ledger.layout))

    @property
    def span(self) -> Span:
        """Its places in the pool. They move when the pool grows, so never keep it."""
        return self.pool.span(self.owner)

    @property
    def nbytes(self) -> int:
        """Bytes of its places, used or not; constant over a stream's life."""
        return self.span.tokens * self.pool.shape.token_bytes

    def layer(self, index: int) -> Tensor:
        """A layer's keys and values [2, N, H, D], a view of the stream's places."""
        span = self.span
        return self.pool.layer(index)[:, span.start : span.stop]

    def kept(self, index: int) -> Tensor:
        """What later steps can see of a layer: keys and values [2, n, H, D], a view of the ledger's `kept` places."""
        return self.layer(index)[:, slice(*self.ledger.kept)]

    def copy(self) -> "StreamState":
        """A state that goes on from here independently.

        Raises:
            AdmissionError: the pool has no room for it.
        """
        copied = StreamState.allocate(self.pool, self.ledger)
        copied.write(self.read())
        return copied

    def reset(self) -> None:
        """Forget everything; the places are kept."""
        self.ledger = Ledger(self.ledger.layout)

    def free(self) -> None:
        """Give the places back. The state must not be used any more. Idempotent."""
        self.pool.free(self.owner)

    def read(self) -> Tensor:
        """A copy of what later steps can see: keys and values [L, 2, n, H, D] of the ledger's `kept` places."""
        return torch.stack([self.kept(index) for index in range(self.pool.shape.layers)])

    def write(self, tokens: Tensor) -> None:
        """Put back what `read` gave of a state with an equal ledger, on any device, in the pool's dtype.

        Raises:
            ValueError: the shape or the dtype is another. Nothing has changed.
        """
        shape, kept = self.pool.shape, slice(*self.ledger.kept)
        wanted = (shape.layers, 2, kept.stop - kept.start, shape.heads, shape.head_dim)
        if tuple(tokens.shape) != wanted or tokens.dtype is not shape.dtype:
            raise ValueError(f"expected {shape.dtype} {list(wanted)}, got {tokens.dtype} {list(tokens.shape)}")
        for index, layer in enumerate(tokens):
            self.kept(index).copy_(layer)
