"""The visible slots of a step as page tables: the arrays that paged attention kernels take, in plain Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from .allocator import Span
from .window import Range, StepPlan

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class VisibleRanges:
    """The slots that the queries of one frame attend to, or of consecutive frames that attend to the same.

    Attributes:
        rows: number of query tokens.
        ranges: slots counted from the pool's first, as ascending ranges with gaps between them.
        page_tokens: slots of a page.
    """

    rows: int
    ranges: tuple[Range, ...]
    page_tokens: int

    @property
    def tokens(self) -> int:
        """Number of visible tokens."""
        return sum(stop - start for start, stop in self.ranges)


def visible_ranges(span: Span, plan: StepPlan) -> tuple[VisibleRanges, ...]:
    """The visible slots of the frames of one stream's step, in order; `span` is the stream's.

    Consecutive frames that attend to the same slots share one entry.
    """
    groups = groupby(plan.frames, key=lambda frame: frame.visible)
    return tuple(
        VisibleRanges(
            len(tuple(frames)) * span.page_tokens,
            tuple((span.start + start, span.start + stop) for start, stop in visible),
            span.page_tokens,
        )
        for visible, frames in groups
    )


@dataclass(frozen=True, slots=True)
class PageTable:
    """Page tables of B consecutive groups of queries.

    Attributes:
        page_tokens: slots of a page.
        query_starts: [B + 1], first query of each group, then the total.
        page_starts: [B + 1], first entry of each group in `pages`, then the total.
        pages: page numbers in the order in which they are read.
        last_page_tokens: [B], number of valid tokens in each group's last page; other pages are full.
    """

    page_tokens: int
    query_starts: tuple[int, ...]
    page_starts: tuple[int, ...]
    pages: tuple[int, ...]
    last_page_tokens: tuple[int, ...]

    @classmethod
    def of(cls, visible: Sequence[VisibleRanges]) -> "PageTable":
        """Build the tables of a step.

        Raises:
            ValueError: a group sees nothing, a partial page other than the start of its last one, or pages of another
                size than the others.
        """
        size = visible[0].page_tokens
        for group in visible:
            inner = [bound for bounds in group.ranges for bound in bounds][:-1]
            if group.page_tokens != size or not group.tokens or group.rows < 1 or any(bound % size for bound in inner):
                raise ValueError(f"no page table of {size}-token pages for {group}")
        pages = [[number for bounds in group.ranges for number in _pages(bounds, size)] for group in visible]
        return cls(
            page_tokens=size,
            query_starts=tuple(accumulate((group.rows for group in visible), initial=0)),
            page_starts=tuple(accumulate((len(numbers) for numbers in pages), initial=0)),
            pages=tuple(number for numbers in pages for number in numbers),
            last_page_tokens=tuple((group.ranges[-1][1] - 1) % size + 1 for group in visible),
        )

    @property
    def tokens(self) -> tuple[int, ...]:
        """[B], number of tokens that each group attends to."""
        counts = (stop - start for start, stop in pairwise(self.page_starts))
        return tuple(
            (count - 1) * self.page_tokens + last for count, last in zip(counts, self.last_page_tokens, strict=True)
        )

    def check(self, pool_pages: int, row_numbers: int) -> None:
        """Check the arrays, since a kernel would read out of bounds instead.

        Args:
            pool_pages: pages in the pool.
            row_numbers: numbers in a token's row, H x D.

        Raises:
            ValueError: they contradict each other, name pages outside the pool, or exceed 32 bits.
        """
        for starts in (self.query_starts, self.page_starts):
            if starts[0] or any(b <= a for a, b in pairwise(starts)):
                raise ValueError(f"starts must increase from 0, got {starts}")
        if not len(self.query_starts) == len(self.page_starts) == len(self.last_page_tokens) + 1:
            raise ValueError("the arrays have different numbers of groups")
        if len(self.pages) != self.page_starts[-1] or not 0 <= min(self.pages) <= max(self.pages) < pool_pages:
            raise ValueError(f"expected {self.page_starts[-1]} pages below {pool_pages}, got {self.pages}")
        if not all(1 <= last <= self.page_tokens for last in self.last_page_tokens):
            raise ValueError(f"expected last pages of 1 to {self.page_tokens} tokens, got {self.last_page_tokens}")
        # Kernels multiply page and stride in 64 bits, but keep the stride itself, tokens and rows in 32.
        largest = max(self.page_tokens * row_numbers, self.query_starts[-1] * row_numbers, sum(self.tokens))
        if largest > INT32_MAX:
            raise ValueError(f"{largest} exceeds 32 bits, for {self.query_starts[-1]} queries of {row_numbers} numbers")


def _pages(bounds: Range, size: int) -> range:
    start, stop = bounds
    return range(start // size, -(-stop // size))
