"""Spans of any page size never overlap, start at page boundaries, and can always be packed."""

import random

import pytest

from retinad.pipeline.cache.allocator import Span, SpanAllocator


def test_a_span_starts_at_a_multiple_of_its_page_size() -> None:
    spans = SpanAllocator(capacity=40).allocate(0, 7, 1).allocate(1, 5, 2)
    assert spans.held == (Span(0, 0, 7, 1), Span(1, 10, 5, 2))
    assert (spans.of(1).start, spans.of(1).slots, spans.of(1).stop, spans.used) == (10, 10, 20, 17)


def test_a_freed_gap_is_reused() -> None:
    spans = SpanAllocator(capacity=30)
    for owner in range(3):
        spans = spans.allocate(owner, 5, 2)
    spans = spans.free(1)
    assert not spans.can_allocate(5, 3)
    assert spans.allocate(3, 5, 2).of(3).start == 10


def test_allocating_returns_a_changed_copy() -> None:
    spans = SpanAllocator(capacity=10)
    assert spans.allocate(0, 5, 1) != spans
    assert spans == SpanAllocator(capacity=10)
    assert spans.free(9) == spans


@pytest.mark.parametrize("size", [(5, 3), (0, 1), (5, 0), (-5, 1)])
def test_a_span_that_does_not_fit_is_refused(size: tuple[int, int]) -> None:
    spans = SpanAllocator(capacity=10)
    assert not spans.can_allocate(*size)
    with pytest.raises(ValueError, match="in a pool of 10 slots"):
        spans.allocate(0, *size)
    with pytest.raises(KeyError):
        spans.of(0)


@pytest.mark.parametrize("seed", range(20))
def test_random_schedules_keep_spans_consistent(seed: int) -> None:
    rng, spans, sizes = random.Random(seed), SpanAllocator(), dict[int, tuple[int, int]]()
    for owner in range(150):
        if sizes and rng.random() < 0.45:
            spans = spans.free(sizes_owner := rng.choice(sorted(sizes)))
            del sizes[sizes_owner]
        size = (rng.randint(1, 12), rng.randint(1, 9))
        before = spans
        if spans.can_allocate(*size):
            spans = spans.allocate(owner, *size)
            assert all(spans.of(other) == before.of(other) for other in sizes)
        else:
            spans = spans.packed(owner, *size)
            # Less than a page is lost between two sizes.
            assert spans.capacity - spans.used < sum({page for page, _ in (*sizes.values(), size)})
        sizes[owner] = size
        spans.check_integrity()
        assert {span.owner: (span.page_tokens, span.pages) for span in spans.held} == sizes


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        ((Span(0, 3, 5, 1),), "page boundary"),
        ((Span(0, 0, 5, 0),), "empty"),
        ((Span(0, 0, 5, 2), Span(1, 5, 5, 1)), "overlaps"),
        ((Span(0, 15, 5, 2),), "beyond the 20 slots"),
        ((Span(0, 0, 5, 1), Span(0, 5, 5, 1)), "two spans"),
    ],
)
def test_inconsistent_spans_are_detected(held: tuple[Span, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SpanAllocator(20, held).check_integrity()
