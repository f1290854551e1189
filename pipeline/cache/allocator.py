"""Which stream holds which token places of the pool, as a value in plain Python: storage is elsewhere.

A stream's places are one unbroken span that begins at a multiple of its page size, the tokens of one of its frames. So
the same buffers read as pages of any size that some stream has, and a stream's span is some of those pages in a row.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Span:
    """A stream's places.

    Attributes:
        owner: number that stands for the stream.
        start: first place, a multiple of `page_tokens`.
        page_tokens: tokens of a page.
        pages: pages, all its own.
    """

    owner: int
    start: int
    page_tokens: int
    pages: int

    @property
    def tokens(self) -> int:
        """Places."""
        return self.pages * self.page_tokens

    @property
    def stop(self) -> int:
        """The place after the last."""
        return self.start + self.tokens


@dataclass(frozen=True, slots=True)
class SpanAllocator:
    """All spans of a buffer.

    Attributes:
        capacity: places of the buffer.
        held: the spans, in the order of their places.
    """

    capacity: int = 0
    held: tuple[Span, ...] = ()

    @property
    def used(self) -> int:
        """Places that are some stream's."""
        return sum(span.tokens for span in self.held)

    def of(self, owner: int) -> Span:
        """The span of a stream.

        Raises:
            KeyError: it has none.
        """
        for span in self.held:
            if span.owner == owner:
                return span
        raise KeyError(owner)

    def can_allocate(self, page_tokens: int, pages: int) -> bool:
        """Whether a gap is large enough."""
        return self._find(page_tokens, pages) is not None

    def allocate(self, owner: int, page_tokens: int, pages: int) -> "SpanAllocator":
        """With a span more, in the first gap that is large enough.

        Raises:
            ValueError: there is none, a size is below 1, or the owner has a span already.
        """
        start = self._find(page_tokens, pages)
        if start is None:
            raise ValueError(f"no {pages} pages of {page_tokens} tokens in a row among {self.capacity} places")
        return self._with(Span(owner, start, page_tokens, pages))

    def free(self, owner: int) -> "SpanAllocator":
        """Without a stream's span, if it has one."""
        return replace(self, held=tuple(span for span in self.held if span.owner != owner))

    def packed(self, owner: int, page_tokens: int, pages: int) -> "SpanAllocator":
        """With a span more, and all of them moved together, in a buffer of just their size.

        Spans of one page size come together: the only places lost are fewer than a page between two sizes.

        Raises:
            ValueError: a size is below 1, or the owner has a span already.
        """
        result = SpanAllocator()
        wanted = (*self.held, Span(owner, 0, page_tokens, pages))
        for span in sorted(wanted, key=lambda span: span.page_tokens):
            start = -(-result.capacity // span.page_tokens) * span.page_tokens
            result = replace(result, capacity=start + span.tokens)._with(replace(span, start=start))
        return result

    def check_integrity(self) -> None:
        """Check that spans lie within the buffer, apart, in order, on page boundaries, each stream with one.

        Raises:
            ValueError: they do not.
        """
        end = 0
        for span in self.held:
            if min(span.page_tokens, span.pages) < 1 or span.start % span.page_tokens or span.start < end:
                raise ValueError(
                    f"{span} is empty, off its page boundary or overlaps the one before, which ends at {end}"
                )
            end = span.stop
        if end > self.capacity:
            raise ValueError(f"spans end at {end}, beyond the {self.capacity} places")
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
