"""The allocator of slots: it decides which stream owns which range of a pool, in plain Python, without storage.

A stream's slots are one contiguous span that starts at a multiple of the stream's page size, the number of tokens per
frame. So the same buffers can be viewed as pages of any stream's size, and a stream's span consists of whole pages.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Span:
    """The slots of a stream.

    Attributes:
        owner: number of the stream.
        start: first slot, a multiple of `page_tokens`.
        page_tokens: number of slots per page.
        pages: number of pages.
    """

    owner: int
    start: int
    page_tokens: int
    pages: int

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self.pages * self.page_tokens

    @property
    def stop(self) -> int:
        """The slot after the last one."""
        return self.start + self.slots


@dataclass(frozen=True, slots=True)
class SpanAllocator:
    """All spans of a buffer. Methods return a changed copy.

    Attributes:
        capacity: number of slots in the buffer.
        held: the spans, in ascending order.
    """

    capacity: int = 0
    held: tuple[Span, ...] = ()

    @property
    def used(self) -> int:
        """Number of allocated slots."""
        return sum(span.slots for span in self.held)

    def of(self, owner: int) -> Span:
        """The span of a stream.

        Raises:
            KeyError: the stream has no span.
        """
        for span in self.held:
            if span.owner == owner:
                return span
        raise KeyError(owner)

    def can_allocate(self, page_tokens: int, pages: int) -> bool:
        """Whether a gap between the spans is large enough for these pages."""
        return self._find(page_tokens, pages) is not None

    def allocate(self, owner: int, page_tokens: int, pages: int) -> "SpanAllocator":
        """Add a span for a stream, in the first gap that is large enough.

        Raises:
            ValueError: no gap is large enough, a size is below 1, or the owner already has a span.
        """
        start = self._find(page_tokens, pages)
        if start is None:
            raise ValueError(f"no gap of {pages} pages of {page_tokens} tokens in a pool of {self.capacity} slots")
        return self._with(Span(owner, start, page_tokens, pages))

    def free(self, owner: int) -> "SpanAllocator":
        """Remove a stream's span, if it has one."""
        return replace(self, held=tuple(span for span in self.held if span.owner != owner))

    def packed(self, owner: int, page_tokens: int, pages: int) -> "SpanAllocator":
        """Add a span and pack all spans into a buffer of exactly the size that they need.

        Spans of the same page size are adjacent. So less than one page is unused between two page sizes, and none
        elsewhere.

        Raises:
            ValueError: a size is below 1, or the owner already has a span.
        """
        result = SpanAllocator()
        wanted = (*self.held, Span(owner, 0, page_tokens, pages))
        for span in sorted(wanted, key=lambda span: span.page_tokens):
            start = -(-result.capacity // span.page_tokens) * span.page_tokens
            result = replace(result, capacity=start + span.slots)._with(replace(span, start=start))
        return result

    def check_integrity(self) -> None:
        """Check that spans are within the buffer, disjoint, ascending and page-aligned, at most one per stream.

        Raises:
            ValueError: one of these conditions does not hold.
        """
        end = 0
        for span in self.held:
            if min(span.page_tokens, span.pages) < 1 or span.start % span.page_tokens or span.start < end:
                raise ValueError(
                    f"{span} is empty, not on a page boundary, or overlaps the previous span, which ends at slot {end}"
                )
            end = span.stop
        if end > self.capacity:
            raise ValueError(f"the last span ends at slot {end}, beyond the {self.capacity} slots of the buffer")
        if len({span.owner for span in self.held}) < len(self.held):
            raise ValueError(f"a stream has two spans: {self.held}")

    def _with(self, span: Span) -> "SpanAllocator":
        held = tuple(sorted((*self.held, span), key=lambda span: span.start))
        result = replace(self, held=held)
        result.check_integrity()
        return result

    def _find(self, page_tokens: int, pages: int) -> int | None:
        if min(page_tokens, pages) < 1:
            return None
        for start, stop in self._gaps():
            aligned = -(-start // page_tokens) * page_tokens
            if aligned + pages * page_tokens <= stop:
                return aligned
        return None

    def _gaps(self) -> Iterator[tuple[int, int]]:
        end = 0
        for span in self.held:
            yield end, span.start
            end = span.stop
        yield end, self.capacity
