"""FlashInfer and dense, each where it is faster: what `auto` runs where FlashInfer can run.

Dense attends to one stream after the other, which costs nothing as long as each fills the device by itself; FlashInfer
takes them all at once, and gathers pages. docs/attention.md has the measurements.
"""

from collections.abc import Sequence

from .dense import DenseBackend
from .page_table import Sight
from .pool import Pool
from .step import Attend, Backend

_TILE = 128
"""Query rows that one block of an attention kernel computes."""


class MixedBackend:
    """Several streams that are too small to fill the device alone go to one backend, all else to dense.

    Args:
        together: takes all streams of a step in one call.
        multiprocessors: of the device.
    """

    def __init__(self, together: Backend, multiprocessors: int) -> None:
        self._together = together
        self._alone = DenseBackend()
        self._multiprocessors = multiprocessors

    def plan(self, pool: Pool, sights: Sequence[Sight]) -> Attend:
        """See `Backend`."""
        blocks = max(-(-sight.rows // _TILE) for sight in sights) * pool.shape.heads
        small = len(sights) > 1 and blocks < self._multiprocessors
        return (self._together if small else self._alone).plan(pool, sights)
