"""The cache of one stream: its window, and its slots in the shared pool."""

from dataclasses import dataclass

from torch import Tensor

from .allocator import Span
from .kv_pool import KVCachePool
from .window import StepPlan, StreamWindow


@dataclass(slots=True, eq=False)
class StreamState:
    """One stream's cache. A `Step`, the restoring of a state file, and the methods of this class change it.

    Attributes:
        window: says which slots hold which frame, counted from the stream's first slot.
        pool: holds, for each layer, the values and the normalised and rotated keys of the tokens. Only slots that are
            visible according to the window are initialised.
        owner: the stream's number in the pool.
        carried: whether the states of `kda` layers are from the previous epoch, and already include the frames of the
            next step.
    """

    window: StreamWindow
    pool: KVCachePool
    owner: int
    carried: bool = False

    @classmethod
    def allocate(cls, pool: KVCachePool, window: StreamWindow) -> "StreamState":
        """Allocate the slots of a stream, uninitialised. `window` describes their contents; usually it is empty.

        Raises:
            AdmissionError: the pool has no room for the stream.
        """
        return cls(window, pool, pool.allocate(window.layout))

    @property
    def span(self) -> Span:
        """The stream's slots in the pool. Never store this span: it moves when the pool grows."""
        return self.pool.span(self.owner)

    @property
    def nbytes(self) -> int:
        """Size of the stream's slots in bytes, used or not; it is constant over the stream's life."""
        return self.span.slots * self.pool.shape.token_bytes + self.pool.shape.stream_bytes

    def layer(self, index: int) -> Tensor:
        """A layer's keys and values [2, N, H, D], a view of the stream's slots."""
        span = self.span
        return self.pool.layer(index)[:, span.start : span.stop]

    def kept(self, index: int) -> tuple[Tensor, ...]:
        """A layer's keys and values that later steps can see, as one view [2, n, H, D] per range of `window.kept`."""
        layer = self.layer(index)
        return tuple(layer[:, start:stop] for start, stop in self.window.kept)

    def states(self, index: int) -> tuple[Tensor, ...]:
        """The state of a `kda` layer, as views: see `RecurrentStatePool.read`."""
        return self.pool.states.read(index, self.pool.row(self.owner))

    def reset(self, *, carry: bool = False) -> None:
        """Empty the window but keep the slots. `carry` keeps the states of `kda` layers too, for a new epoch."""
        self.window = StreamWindow(self.window.layout)
        self.carried = carry

    def free(self) -> None:
        """Free the slots. The state must not be used afterwards. Idempotent."""
        self.pool.free(self.owner)


def planned(state: StreamState, frames: int | StepPlan) -> StepPlan:
    """The plan of a stream's step: the given one, or that of a number of frames."""
    return frames if isinstance(frames, StepPlan) else state.window.plan(frames)
