"""The service while cameras, subscribers, configs and the engine fail at random: it keeps running, and leaks nothing.

The ordinary tests include half a minute of it; `make soak MINUTES=60` runs it for as long as you like.
"""

import os
import random
from itertools import pairwise

import numpy as np
import pytest

from retinad.client import Kind

from ..deadlines import scaled
from .chaos import WATCHDOG_S, ChaosRun, Outcome
from .faults import STEADY, Faults
from .figures import late_half, report, slope, timed
from .measure import p99

SHORT_MINUTES = 0.5
MINUTES = float(os.environ.get("SOAK_MINUTES", "2"))
SEED = int(os.environ.get("SOAK_SEED", random.randrange(1 << 32)))

pytestmark = pytest.mark.timeout(60 * (max(MINUTES, SHORT_MINUTES) + 8))  # it starts, recovers twice, and stops


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SHORT_MINUTES, id="short"),
        pytest.param(MINUTES, id="long", marks=pytest.mark.soak),
    ],
)
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    print(f"\nseed {SEED}: SOAK_SEED={SEED} injects the same faults again")
    played = ChaosRun(tmp_path_factory.mktemp("soak"), request.param, SEED).play()
    print(report(played))
    return played


def test_every_fault_was_injected_and_had_an_effect(outcome: Outcome) -> None:
    """Without this, the other tests would prove nothing."""
    assert set(outcome.faults) == {name for name in vars(Faults) if not name.startswith("_") and name != "all"}
    records = outcome.received["good"]
    assert {"running", "stalled", "backoff", "connecting"} <= {one.state for one in records if one.kind is Kind.STATUS}
    assert any("nan" in one.flags for one in records)
    assert any("size_changed" in one.flags for one in records)
    reasons = {str(line.get("reason")).partition(":")[0] for line in outcome.log if line["event"] == "frame failed"}
    assert {"ZeroDivisionError", "RuntimeError"} <= reasons
    assert any(("reconnect", 1) in one.gaps for one in records)
    harmed = [one for name in outcome.received.keys() - {"good"} for one in outcome.received[name]]
    assert any(word == "wire_loss" for one in harmed for word, _ in one.gaps)
    events = {str(line["event"]) for line in outcome.log}
    assert {"reloaded", "reload failed: invalid config, keeping the old one"} <= events


def test_counters_add_up_in_every_status_and_end(outcome: Outcome) -> None:
    counted = [one.counters for records in outcome.received.values() for one in records if one.counters]
    assert counted
    assert all(counters.add_up for counters in counted)
    assert {one.camera for one in outcome.received["good"] if one.kind is Kind.END} >= set(STEADY)


def test_totals_never_fall(outcome: Outcome) -> None:
    """Neither at a reconnect, nor when a camera is removed from the config and added again."""
    for camera in {one.camera for one in outcome.received["good"]}:
        totals = [one.counters for one in outcome.received["good"] if one.camera == camera and one.counters]
        for before, after in pairwise(totals):
            assert before.captured <= after.captured
            assert before.published <= after.published
            assert before.failed <= after.failed


def test_a_subscriber_that_keeps_up_loses_nothing(outcome: Outcome) -> None:
    lost = [one for one in outcome.received["good"] if any(word in ("wire_loss", "restart") for word, _ in one.gaps)]
    assert not lost
    assert len({one.instance for one in outcome.received["good"]}) == 1


@pytest.mark.parametrize("camera", STEADY)
def test_faults_of_other_cameras_do_not_affect_a_steady_one(outcome: Outcome, camera: str) -> None:
    """It has one connection throughout, and each sequence number once."""
    records = [one for one in outcome.received["good"] if one.camera == camera]
    assert {one.stream_epoch for one in records if one.kind is Kind.FEATURES} == {0}
    assert {one.state for one in records if one.kind is Kind.STATUS} <= {"connecting", "running"}
    numbers = [one.seq for one in records if one.kind is Kind.FEATURES]
    assert numbers == list(range(len(numbers)))
    end = records[-1]
    assert (end.kind, end.state, end.seq) == (Kind.END, "stopped", len(numbers))


def test_memory_does_not_grow(outcome: Outcome) -> None:
    """From half an hour on: less than 1 MB an hour, half a million bytes in the second half of an hour.

    Shorter runs cannot tell 1 MB an hour: heaps still find their size, and the shared memory of reopened cameras,
    0.5 MB each, comes and goes. They limit the growth in their second half, to 4 MB after two minutes and 1 MB after
    half a minute: one leaked image in fifteen adds more.
    """
    late = late_half(outcome)
    grown_mb = slope(late) * (late[-1].at_s - late[0].at_s) / 3600
    if outcome.minutes >= 30:
        assert slope(late) <= 1.0
    else:
        assert grown_mb <= (4.0 if outcome.minutes >= 2 else 1.0)


def test_latency_does_not_grow(outcome: Outcome) -> None:
    """At most three times as much in the second half, plus what other programs on the machine add.

    They move the 99th percentile by 50 ms over half an hour. In two minutes it is the third worst of 330 records, and
    one busy moment moves it by 0.5 s. In half a minute it is the worst of 70: that run compares medians, which only a
    lasting delay moves by 0.2 s, and leaves the 99th percentile to `make soak`.
    """
    middle_s = (outcome.began_s + outcome.ended_s) / 2
    early_ms = [one.age_ms for one in timed(outcome) if one.at_s < middle_s]
    late_ms = [one.age_ms for one in timed(outcome) if one.at_s >= middle_s]
    assert len(early_ms) >= 10
    assert len(late_ms) >= 10
    if outcome.minutes >= 2:
        assert p99(late_ms) <= 3 * p99(early_ms) + scaled(50 if outcome.minutes >= 30 else 500)
    else:
        assert np.median(late_ms) <= 3 * np.median(early_ms) + scaled(200)


def test_nothing_stays_open(outcome: Outcome) -> None:
    before, after = outcome.before, outcome.after
    assert before.children == after.children == 8
    assert before.sample.frame_maps == after.sample.frame_maps == 8
    # The slow subscriber, which the service disconnects now and then, may be reconnecting: one descriptor each.
    assert abs(after.sample.descriptors - before.sample.descriptors) <= 2
    assert np.median([one.descriptors for one in late_half(outcome)]) <= before.sample.descriptors + 2
    # A thread that reads configs exists only while it is needed.
    assert abs(after.sample.threads - before.sample.threads) <= 1


def test_the_watchdog_is_always_fed_in_time(outcome: Outcome) -> None:
    assert np.diff(outcome.fed_at_s).max() < WATCHDOG_S


def test_subscribers_survive(outcome: Outcome) -> None:
    assert outcome.survivors == set(outcome.received)
    assert not outcome.subscriber_errors


def test_the_log_tells_of_no_fault_of_the_service(outcome: Outcome) -> None:
    known = {
        "reload failed: invalid config, keeping the old one",
        "reload failed: config not readable, keeping the old one",
    }
    loud = [line for line in outcome.log if line["level"] in ("error", "critical") and line["event"] not in known]
    assert not loud


def test_it_stops_in_three_seconds_and_leaves_no_process(outcome: Outcome) -> None:
    """Even while a capture process and the model hang."""
    assert outcome.exit_code == 0
    assert outcome.exit_s < scaled(3.0)
    assert not outcome.left_behind


def test_no_output_contains_the_password(outcome: Outcome) -> None:
    assert not any(outcome.secret in text for text in outcome.texts)
