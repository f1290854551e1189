"""Page tables list exactly the visible slots, and contradictory tables never reach a kernel."""

from dataclasses import replace

import pytest
import torch

from retinad.pipeline.cache.backends.dense import attend_all
from retinad.pipeline.cache.backends.paged import TableTensors, attend_pages
from retinad.pipeline.cache.page_table import PageTable, VisibleRanges

from .memory import D, H

TABLE = PageTable.of([VisibleRanges(5, ((10, 20),), 5), VisibleRanges(5, ((30, 46),), 5)])


def test_page_table_of_two_streams() -> None:
    assert PageTable(5, (0, 5, 10), (0, 2, 6), (2, 3, 6, 7, 8, 9), (5, 1)) == TABLE
    assert TABLE.tokens == (10, 16)
    TABLE.check(pool_pages=10, row_numbers=H * D)


@pytest.mark.parametrize("page", [1, 2, 5, 6, 7])
@pytest.mark.parametrize("seen", range(1, 16))
def test_slots_around_page_edges(page: int, seen: int) -> None:
    start = 3 * page
    table = PageTable.of([VisibleRanges(page, ((start, start + seen),), page)])
    slots = [number * page + offset for number in table.pages for offset in range(page)]
    assert slots[: table.tokens[0]] == list(range(start, start + seen))
    assert len(slots) - table.tokens[0] < page


@pytest.mark.parametrize(
    "group",
    [
        VisibleRanges(5, ((1, 9),), 5),
        VisibleRanges(5, ((5, 5),), 5),
        VisibleRanges(0, ((5, 9),), 5),
        VisibleRanges(7, ((14, 20),), 7),
    ],
)
def test_ranges_without_a_page_table_are_refused(group: VisibleRanges) -> None:
    with pytest.raises(ValueError, match="a page table with pages of 5 tokens"):
        PageTable.of([VisibleRanges(5, ((0, 5),), 5), group])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"query_starts": (0, 10, 10)}, "increase"),
        ({"query_starts": (1, 5, 10)}, "increase"),
        ({"page_starts": (0, 4, 2)}, "increase"),
        ({"query_starts": (0, 10)}, "the same number of groups"),
        ({"last_page_tokens": (5,)}, "the same number of groups"),
        ({"pages": (2, 3, 6, 7, 8)}, "expected 6 page numbers"),
        ({"pages": (2, 3, 6, 7, 8, 10)}, "below 10"),
        ({"pages": (-1, 3, 6, 7, 8, 9)}, "below 10"),
        ({"last_page_tokens": (5, 0)}, "1 to 5 tokens"),
        ({"last_page_tokens": (6, 1)}, "1 to 5 tokens"),
        ({"query_starts": (0, 5, 2**28)}, "does not fit in 32 bits"),
        ({"page_tokens": 2**28}, "does not fit in 32 bits"),
    ],
)
def test_tables_that_a_kernel_would_misread_are_refused(change: dict[str, object], reason: str) -> None:
    """Known bugs of paged kernels: they accept a last page longer than a page, and read wrong rows out of bounds."""
    with pytest.raises(ValueError, match=reason):
        replace(TABLE, **change).check(pool_pages=10, row_numbers=H * D)  # type: ignore[arg-type]


def test_pages_may_be_in_any_order_between_garbage() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(n, H, D, generator=generator) for n in (5, 33, 33))
    expected = attend_all(query, key, value)
    for _ in range(20):
        numbers = torch.randperm(20, generator=generator)[:7].tolist()
        pages = torch.full((2, 20, 5, H, D), float("nan"))
        for index, number in enumerate(numbers):
            for target, part in zip(pages, (key, value), strict=True):
                piece = part[5 * index : 5 * index + 5]
                target[number, : len(piece)] = piece
        table = PageTable(5, (0, 5), (0, 7), tuple(numbers), (3,))
        table.check(pool_pages=20, row_numbers=H * D)
        out = attend_pages(query, (pages[0], pages[1]), TableTensors.of(table))
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
