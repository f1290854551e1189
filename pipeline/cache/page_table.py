"""The visible slots of a step as page tables: the arrays that paged attention kernels take, in plain Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from .allocator import Span
from .window import Range, StepPlan

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class VisibleRanges:
    """The slots that one frame's queries attend to, or those of several consecutive frames that attend to the same.

    Attributes:
        rows: number of query tokens.
        ranges: the slots, counted from the pool's first slot, as ascending ranges with gaps between them.
        page_tokens: number of slots per page.
        beside: number of further visible tokens, which are in no slot: they are passed along with the queries.
    """

    rows: int
    ranges: tuple[Range, ...]
    page_tokens: int
    beside: int = 0

    @property
    def tokens(self) -> int:
        """Number of visible tokens in slots."""
        return sum(stop - start for start, stop in self.ranges)


def visible_ranges(span: Span, plan: StepPlan) -> tuple[VisibleRanges, ...]:
    """The slots that the frames of one stream attend to in a step, in the order of the frames.

    Consecutive frames that attend to the same slots share one entry. `span` must be that of the stream.
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
        page_tokens: number of slots per page.
        query_starts: [B + 1], index of each group's first query, then the total number of queries.
        page_starts: [B + 1], index of each group's first entry in `pages`, then the total number of entries.
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
            ValueError: a group sees no slots, or tokens beside the slots; or it sees only part of a page, other than
                the start of its last page; or groups differ in page size.
        """
        size = visible[0].page_tokens
        for group in visible:
            inner = [bound for bounds in group.ranges for bound in bounds][:-1]
            unfit = group.page_tokens != size or not group.tokens or group.rows < 1 or group.beside
            if unfit or any(bound % size for bound in inner):
                raise ValueError(f"a page table with pages of {size} tokens cannot represent {group}")
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
        """Check the arrays, since a kernel with wrong arrays would read out of bounds.

        Args:
            pool_pages: number of pages in the pool.
            row_numbers: H x D, how many numbers the keys (or the values) of one token have.

        Raises:
            ValueError: the arrays contradict each other, name pages outside the pool, or need more than 32 bits.
        """
        for starts in (self.query_starts, self.page_starts):
            if starts[0] or any(b <= a for a, b in pairwise(starts)):
                raise ValueError(f"starts must begin with 0 and increase, got {starts}")
        if not len(self.query_starts) == len(self.page_starts) == len(self.last_page_tokens) + 1:
            raise ValueError(
                "the arrays must be for the same number of groups, got lengths of "
                f"{len(self.query_starts)}, {len(self.page_starts)} and {len(self.last_page_tokens)}"
            )
        if len(self.pages) != self.page_starts[-1] or not 0 <= min(self.pages) <= max(self.pages) < pool_pages:
            raise ValueError(f"expected {self.page_starts[-1]} page numbers below {pool_pages}, got {self.pages}")
        if not all(1 <= last <= self.page_tokens for last in self.last_page_tokens):
            raise ValueError(f"expected last pages of 1 to {self.page_tokens} tokens, got {self.last_page_tokens}")
        # Kernels multiply page number and stride in 64 bits, but keep the stride itself, the number of tokens and the
        # offset of a row in 32.
        largest = max(self.page_tokens * row_numbers, self.query_starts[-1] * row_numbers, sum(self.tokens))
        if largest > INT32_MAX:
            raise ValueError(
                f"the largest offset, {largest}, does not fit in 32 bits, for {self.query_starts[-1]} queries of "
                f"{row_numbers} numbers"
            )


def _pages(bounds: Range, size: int) -> range:
    start, stop = bounds
    return range(start // size, -(-stop // size))
