"""Waits grow up to a cap, are spread by jitter, and are long where an early retry cannot help."""

import pytest

from retinad.pipeline.capture.backoff import Backoff


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
