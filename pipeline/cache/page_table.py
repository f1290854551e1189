"""What the queries of a step see, as page tables: the arrays that a paged attention kernel takes, in plain Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from .allocator import Span
from .window import Range, StepPlan

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class VisibleRanges:
    """What the queries of a frame see, or of several frames that see the same: places counted from the pool's first.

    Attributes:
        rows: query tokens.
        ranges: the places, in ascending order, none adjacent to the next.
        page_tokens: tokens of a page.
    """

    rows: int
    ranges: tuple[Range, ...]
    page_tokens: int

    @property
    def tokens(self) -> int:
        """Places seen."""
        return sum(stop - start for start, stop in self.ranges)


def visible_ranges(span: Span, plan: StepPlan) -> tuple[VisibleRanges, ...]:
    """What the frames of a step of a stream in `span` see, in order; frames in a row that see the same are one."""
    seen = [(visible, len(tuple(frames))) for visible, frames in groupby(plan.frames, key=lambda frame: frame.visible)]
    return tuple(
        VisibleRanges(
            count * span.page_tokens,
            tuple((span.start + start, span.start + stop) for start, stop in visible),
            span.page_tokens,
        )
        for visible, count in seen
    )


@dataclass(frozen=True, slots=True)
class PageTable:
    """Page tables of B groups of queries, one after the other.

    Attributes:
        page_tokens: tokens of a page.
        query_starts: [B + 1], first query of each group, then how many there are.
        page_starts: [B + 1], first entry of each group in `pages`, then how many there are.
        pages: numbers of the pages, in the order in which they are read.
        last_page_tokens: [B], tokens of each group's last page that may be read; all of every other page are.
    """

    page_tokens: int
    query_starts: tuple[int, ...]
    page_starts: tuple[int, ...]
    pages: tuple[int, ...]
    last_page_tokens: tuple[int, ...]

    @classmethod
    def of(cls, sights: Sequence[VisibleRanges]) -> "PageTable":
        """The tables of a step.

        Raises:
            ValueError: a group sees nothing, parts of pages other than the beginning of its last one, or pages of
                another size than the others.
        """
        page = sights[0].page_tokens
        for sight in sights:
            inner = [place for bounds in sight.ranges for place in bounds][:-1]
            if sight.page_tokens != page or not sight.tokens or sight.rows < 1 or any(place % page for place in inner):
                raise ValueError(f"no page table of {page}-token pages for {sight}")
        runs = [[number for bounds in sight.ranges for number in _pages(bounds, page)] for sight in sights]
        return cls(
            page_tokens=page,
            query_starts=tuple(accumulate((sight.rows for sight in sights), initial=0)),
            page_starts=tuple(accumulate((len(run) for run in runs), initial=0)),
            pages=tuple(number for run in runs for number in run),
            last_page_tokens=tuple((sight.ranges[-1][1] - 1) % page + 1 for sight in sights),
        )

    @property
    def tokens(self) -> tuple[int, ...]:
        """[B], tokens that each group sees."""
        counts = (stop - start for start, stop in pairwise(self.page_starts))
        return tuple(
            (count - 1) * self.page_tokens + last for count, last in zip(counts, self.last_page_tokens, strict=True)
        )

    def check(self, pool_pages: int, row_numbers: int) -> None:
        """Check the arrays as a kernel cannot, which would read elsewhere instead.

        Args:
            pool_pages: pages in the pool.
            row_numbers: numbers of a token's row, H x D.

        Raises:
            ValueError: they contradict each other, name pages that are not there, or are beyond 32 bits.
        """
        for starts in (self.query_starts, self.page_starts):
            if starts[0] or any(b <= a for a, b in pairwise(starts)):
                raise ValueError(f"starts rise from 0, got {starts}")
        if not len(self.query_starts) == len(self.page_starts) == len(self.last_page_tokens) + 1:
            raise ValueError("the arrays are of different numbers of groups")
        if len(self.pages) != self.page_starts[-1] or not 0 <= min(self.pages) <= max(self.pages) < pool_pages:
            raise ValueError(f"expected {self.page_starts[-1]} pages below {pool_pages}, got {self.pages}")
        if not all(1 <= last <= self.page_tokens for last in self.last_page_tokens):
            raise ValueError(f"a last page has 1 to {self.page_tokens} tokens, got {self.last_page_tokens}")
        # Kernels multiply page by stride in 64 bits, but hold the stride itself, tokens and rows in 32.
        largest = max(self.page_tokens * row_numbers, self.query_starts[-1] * row_numbers, sum(self.tokens))
        if largest > INT32_MAX:
            raise ValueError(f"beyond 32 bits: {largest} for {self.query_starts[-1]} queries of {row_numbers} numbers")


def _pages(bounds: Range, page: int) -> range:
    start, stop = bounds
    return range(start // page, -(-stop // page))
