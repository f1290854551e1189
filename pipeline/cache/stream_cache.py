"""All that a model remembers of one stream: a ledger that says what stands where, and places of the shared pool."""

from dataclasses import dataclass

from torch import Tensor

from .allocator import Span
from .kv_pool import KVCachePool
from .window import StreamWindow


@dataclass(slots=True, eq=False)
class StreamState:
    """One stream's memory. A `Step` and a stream that goes on from a file write to it, and the methods here.

    Attributes:
        ledger: which frame stands where, counted from the stream's first place.
        pool: where its tokens are stored: keys, normalised and rotated, and values of each layer. Only the places that
            the ledger calls visible hold anything.
        owner: its number in the pool.
        carried: whether what `kda` layers keep is that of the epoch before, which has scanned the next frames already.
    """

    ledger: StreamWindow
    pool: KVCachePool
    owner: int
    carried: bool = False

    @classmethod
    def allocate(cls, pool: KVCachePool, ledger: StreamWindow) -> "StreamState":
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
        return self.span.tokens * self.pool.shape.token_bytes + self.pool.shape.stream_bytes

    def layer(self, index: int) -> Tensor:
        """A layer's keys and values [2, N, H, D], a view of the stream's places."""
        span = self.span
        return self.pool.layer(index)[:, span.start : span.stop]

    def kept(self, index: int) -> tuple[Tensor, ...]:
        """What later steps can see of a layer: keys and values [2, n, H, D] of each of the ledger's `kept` ranges.

        They are views of the stream's places.
        """
        layer = self.layer(index)
        return tuple(layer[:, start:stop] for start, stop in self.ledger.kept)

    def states(self, index: int) -> tuple[Tensor, ...]:
        """What a `kda` layer keeps, views: see `RecurrentStatePool.read`."""
        return self.pool.states.read(index, self.pool.row(self.owner))

    def reset(self, *, carry: bool = False) -> None:
        """Forget everything; the places are kept. `carry` keeps what `kda` layers have, for a new epoch."""
        self.ledger = StreamWindow(self.ledger.layout)
        self.carried = carry

    def free(self) -> None:
        """Give the places back. The state must not be used any more. Idempotent."""
        self.pool.free(self.owner)
