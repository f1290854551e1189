"""A throughput is right however its events are bunched, and forgets what is long past."""

import pytest

from retinad.pipeline.throughput import Throughput


def test_events_count_for_five_seconds_whether_alone_or_in_bunches() -> None:
    now = 100.0
    rate = Throughput(lambda: now)
    assert rate.per_s == 0
    rate.add(3)
    assert rate.per_s == 3, "of the first second, which is the shortest that counts"
    for second in range(1, 11):
        now = 100.0 + second
        rate.add(20)
        rate.add(0)
    assert rate.per_s == pytest.approx(24)  # six bunches are within the last five seconds
    now += 4.5
    assert rate.per_s == pytest.approx(4)
    now += 60
    assert rate.per_s == 0
