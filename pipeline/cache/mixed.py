"""FlashInfer and dense, each where it is faster: what `auto` runs where FlashInfer can run.

Dense attends to one stream after the other, which costs nothing as long as each fills the device by itself; FlashInfer
takes them all at once, but gathers pages. Measured on an H200 (docs/attention.md), dense and fa3, 16 heads: 8 streams
of 118 tokens a frame 1.22 and 0.25 ms, 2 of 262 tokens 0.54 and 0.38 ms; but 4 of 783 tokens 2.50 and 2.53 ms, 2 of
1005 tokens 1.65 and 2.16 ms, and any one stream is slower with fa3.
"""

from collections.abc import Sequence

from .dense import DenseBackend
from .page_table import Sight
from .pool import Pool
from .step import Attend, Backend

_TILE = 128
"""Query rows that one block of an attention kernel computes."""


class MixedBackend:
    """Several streams that fill half of the device each, or less, go to one backend, all else to dense.

    Args:
        together: takes all streams of a step in one call.
        multiprocessors: of the device.
    """

    whole_pages = True

    def __init__(self, together: Backend, multiprocessors: int) -> None:
        self._together = together
        self._alone = DenseBackend()
        self._multiprocessors = multiprocessors

    def plan(self, pool: Pool, sights: Sequence[Sight]) -> Attend:
        """See `Backend`."""
        blocks = max(-(-sight.rows // _TILE) for sight in sights) * pool.shape.heads
        small = len(sights) > 1 and 2 * blocks <= self._multiprocessors
        return (self._together if small else self._alone).plan(pool, sights)
