"""What the queries of a step see, as page tables: the arrays that a paged attention kernel takes, in plain Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from .ledger import StepPlan
from .pages import Span

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Sight:
    """What one stream's queries see: an unbroken range of places, counted from the pool's first.

    Attributes:
        rows: query tokens.
        start, stop: first and last + 1 of the places.
        page_tokens: tokens of a page.
    """

    rows: int
    start: int
    stop: int
    page_tokens: int

    @classmethod
    def of(cls, span: Span, plan: StepPlan) -> "Sight":
        """What a step of a stream in `span` sees."""
        start, stop = (span.start + place for place in plan.visible)
        return cls(len(plan.places) * span.page_tokens, start, stop, span.page_tokens)


@dataclass(frozen=True, slots=True)
class PageTable:
    """Page tables of B streams, one after the other.

    Attributes:
        page_tokens: tokens of a page.
        query_starts: [B + 1], first query of each stream, then how many there are.
        page_starts: [B + 1], first entry of each stream in `pages`, then how many there are.
        pages: numbers of the pages, in the order in which they are read.
        last_page_tokens: [B], tokens of each stream's last page that may be read; all of every other page are.
    """

    page_tokens: int
    query_starts: tuple[int, ...]
    page_starts: tuple[int, ...]
    pages: tuple[int, ...]
    last_page_tokens: tuple[int, ...]

    @classmethod
    def of(cls, sights: Sequence[Sight]) -> "PageTable":
        """The tables of a step.

        Raises:
            ValueError: a stream sees nothing, from within a page on, or in pages of another size than the others.
        """
        page = sights[0].page_tokens
        for sight in sights:
            if sight.page_tokens != page or sight.start % page or sight.stop <= sight.start or sight.rows < 1:
                raise ValueError(f"no page table of {page}-token pages for {sight}")
        runs = [range(sight.start // page, -(-sight.stop // page)) for sight in sights]
        return cls(
            page_tokens=page,
            query_starts=tuple(accumulate((sight.rows for sight in sights), initial=0)),
            page_starts=tuple(accumulate((len(run) for run in runs), initial=0)),
            pages=tuple(number for run in runs for number in run),
            last_page_tokens=tuple((sight.stop - 1) % page + 1 for sight in sights),
        )

    @property
    def tokens(self) -> tuple[int, ...]:
        """[B], tokens that each stream sees."""
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
            raise ValueError("the arrays are of different numbers of streams")
        if len(self.pages) != self.page_starts[-1] or not 0 <= min(self.pages) <= max(self.pages) < pool_pages:
            raise ValueError(f"expected {self.page_starts[-1]} pages below {pool_pages}, got {self.pages}")
        if not all(1 <= last <= self.page_tokens for last in self.last_page_tokens):
            raise ValueError(f"a last page has 1 to {self.page_tokens} tokens, got {self.last_page_tokens}")
        # Kernels multiply page by stride in 64 bits, but hold the stride itself, tokens and rows in 32.
        largest = max(self.page_tokens * row_numbers, self.query_starts[-1] * row_numbers, sum(self.tokens))
        if largest > INT32_MAX:
            raise ValueError(f"beyond 32 bits: {largest} for {self.query_starts[-1]} queries of {row_numbers} numbers")
