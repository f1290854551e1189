"""What `auto` runs on a GPU goes to either backend by how many blocks of queries there are, with the same numbers."""

from collections.abc import Sequence

import pytest
import torch

from retinad.pipeline.cache.mixed import MixedBackend
from retinad.pipeline.cache.page_table import Sight
from retinad.pipeline.cache.pool import Pool
from retinad.pipeline.cache.step import Attend
from retinad.pipeline.config import StreamConfig

from .memory import BACKENDS, H, new_pool, new_state, run, tokens


class Counting:
    """The paged backend, counting plans."""

    def __init__(self) -> None:
        self.plans = 0

    whole_pages = True

    def plan(self, pool: Pool, sights: Sequence[Sight]) -> Attend:
        self.plans += 1
        return BACKENDS["paged"].plan(pool, sights)


@pytest.mark.parametrize(
    ("streams", "multiprocessors", "together"),
    # A stream of 5 queries has one block a head: H of them.
    [(1, 1000, False), (2, 2 * H, True), (2, 2 * H - 1, False), (4, 2 * H, True)],
)
def test_small_streams_go_together_and_all_else_one_by_one(streams: int, multiprocessors: int, together: bool) -> None:
    counting, pool = Counting(), new_pool()
    mixed = MixedBackend(counting, multiprocessors)
    stream = StreamConfig(1, 2)
    states, alone = [new_state(stream, pool) for _ in range(streams)], [new_state(stream) for _ in range(streams)]
    for number in range(6):
        parts = [tokens(10 * number + i, 1) for i in range(streams)]
        outputs = run(states, parts, mixed).split(1, dim=1)
        for state, part, output in zip(alone, parts, outputs, strict=True):
            torch.testing.assert_close(output, run([state], [part], BACKENDS["dense"]), rtol=0, atol=1e-6)
    assert counting.plans == (6 if together else 0)
