"""Waits grow up to a cap, are spread by jitter, and are long where an early retry cannot help."""

import pytest

from retinad.pipeline.capture.backoff import Backoff, RetrySchedule


def test_the_longest_wait_doubles_up_to_the_cap() -> None:
    waits = [Backoff().delay_s(attempt, permanent=False, random=lambda: 1.0) for attempt in range(1, 9)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert Backoff().delay_s(10**6, permanent=False, random=lambda: 1.0) == 30


def test_jitter_spreads_over_the_whole_wait() -> None:
    assert Backoff().delay_s(3, permanent=False, random=lambda: 0.0) == 0
    assert Backoff().delay_s(3, permanent=False, random=lambda: 0.25) == 0.5


@pytest.mark.parametrize("chance", [0.0, 0.99])
def test_permanent_faults_wait_long_from_the_first(chance: float) -> None:
    assert 60 <= Backoff().delay_s(1, permanent=True, random=lambda: chance) <= 90


def test_failures_are_counted_until_a_source_was_healthy() -> None:
    now_s = 0.0
    retries = RetrySchedule(Backoff(first_s=1.0, healthy_s=10.0), jitter=lambda: 1.0, clock=lambda: now_s)
    assert [retries.next_delay_s(permanent=False) for _ in range(3)] == [1.0, 2.0, 4.0]
    for seconds, failures in ((9.0, 4), (11.0, 1)):
        retries.mark_opened()
        retries.mark_running()
        now_s += seconds
        retries.next_delay_s(permanent=False)
        assert retries.failures == failures
    retries.mark_opened()
    now_s += 100.0
    retries.next_delay_s(permanent=False)
    assert retries.failures == 2, "open without a frame is not healthy"
