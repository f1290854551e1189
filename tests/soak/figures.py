"""The figures of a chaos run: those that the tests assert on, and the table that `make soak` prints."""

import os
import platform
from collections import Counter
from collections.abc import Iterator

import torch
import zmq

from retinad.client import Kind

from .chaos import Outcome
from .faults import STEADY
from .faulty_service import HANG_S
from .measure import Sample, p99, slope_per_hour
from .subscribe import Received

WINDOWS = 6


def late_half(outcome: Outcome) -> list[Sample]:
    """The samples of the second half."""
    return [one for one in outcome.samples if (outcome.began_s + outcome.ended_s) / 2 <= one.at_s <= outcome.ended_s]


def slope(samples: list[Sample]) -> float:
    """Growth of the service's memory, in MB an hour."""
    return slope_per_hour([one.at_s for one in samples], [one.resident_mb for one in samples])


def timed(outcome: Outcome) -> list[Received]:
    """Features of the steady cameras whose age depends on the service alone.

    Excluded are those of a stream's first block, which are published with its last frame, and those that waited for
    the engine while it hung on request.
    """
    return [
        one
        for one in outcome.received["good"]
        if one.kind is Kind.FEATURES
        and one.camera in STEADY
        and "warmup" not in one.flags
        and outcome.began_s <= one.at_s <= outcome.ended_s
        and not any(-1 <= one.at_s - one.age_ms / 1e3 - at_s <= HANG_S + 1 for at_s in outcome.hung_at_s)
    ]


def report(outcome: Outcome) -> str:
    """A summary of the run."""
    late = late_half(outcome)
    private = slope_per_hour([one.at_s for one in late], [one.private_mb for one in late])
    lines = (
        f"seed {outcome.seed}, {outcome.minutes:g} min, {outcome.faults.total()} faults: {_counts(outcome.faults)}",
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"torch {torch.__version__}, pyzmq {zmq.__version__}, libzmq {zmq.zmq_version()}",
        *_table(outcome),
        f"second half: resident {slope(late):+.2f} MB/h, private {private:+.2f} MB/h",
        f"before {outcome.before}",
        f"after  {outcome.after}",
        f"counters at the end: {_totals(outcome)}",
        *(f"subscriber {name}: {_counts(_words(records))}" for name, records in outcome.received.items()),
        f"reloads: {sum(line['event'] == 'reloaded' for line in outcome.log)} taken, "
        f"{sum('keeping the old one' in str(line['event']) for line in outcome.log)} refused",
        f"exit {outcome.exit_code} after {outcome.exit_s:.2f} s",
    )
    return "\n".join(lines)


def _table(outcome: Outcome) -> Iterator[str]:
    yield "minutes         resident MB  private MB  descriptors  threads  records  p50 ms  p99 ms  load"
    width_s = (outcome.ended_s - outcome.began_s) / WINDOWS
    ages = timed(outcome)
    for number in range(WINDOWS):
        low_s, high_s = (outcome.began_s + width_s * (number + more) for more in (0, 1))
        here = [one for one in outcome.samples if low_s <= one.at_s < high_s]
        late = sorted(one.age_ms for one in ages if low_s <= one.at_s < high_s)
        if not here or not late:  # a window of a short run may be spent hanging
            continue
        median = sorted(here, key=lambda one: one.resident_mb)[len(here) // 2]
        yield (
            f"{width_s * number / 60:5.1f} to {width_s * (number + 1) / 60:5.1f}  {median.resident_mb:11.2f}"
            f"  {median.private_mb:10.2f}  {median.descriptors:11}  {median.threads:7}  {len(late):7}"
            f"  {late[len(late) // 2]:6.1f}  {p99(late):6.1f}  {sum(one.load for one in here) / len(here):4.1f}"
        )


def _totals(outcome: Outcome) -> str:
    last = {one.camera: one.counters for one in outcome.received["good"] if one.kind is Kind.END and one.counters}
    names = ("captured", "published", "dropped", "failed")
    return ", ".join(f"{sum(getattr(counters, name) for counters in last.values())} {name}" for name in names)


def _words(records: list[Received]) -> Counter[str]:
    words = Counter(str(one.kind) for one in records)
    for one in records:
        words.update(dict(one.gaps))
        words.update(flag for flag in one.flags if flag in ("nan", "reset", "size_changed"))
    return words


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items()))
