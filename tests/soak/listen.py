"""A subscriber as a process of its own, which writes what it gets to a file, one JSON object a record.

Run as `python listen.py ENDPOINT FILE PAUSE_S`; a pause after each record makes it a slow one. It runs until killed.
"""

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from retinad.client import EndRecord, FeaturesRecord, HelloRecord, Kind, Record, StatusRecord, Subscriber


@dataclass(frozen=True)
class Counters:
    """What the service says became of a camera's frames."""

    captured: int
    published: int
    dropped: int
    failed: int
    in_flight: int = 0

    @property
    def add_up(self) -> bool:
        return self.captured == self.published + self.dropped + self.failed + self.in_flight


@dataclass(frozen=True)
class Seen:
    """One record as a subscriber got it: what the soak asserts on, and no more.

    Attributes:
        kind: of the message.
        at_s: `time.monotonic()` when it was received, the same clock in all processes.
        instance: of the service.
        camera: empty for hello.
        stream_epoch, seq: of a features record; of an end the last epoch and the number that would have come next.
        age_ms: capture to receive, of a features record.
        state: of a status; of an end its reason.
        flags: of a features record.
        gaps: words such as `wire_loss`, as often as records are missing.
        counters: of a status or an end.
    """

    kind: Kind
    at_s: float
    instance: str
    camera: str = ""
    stream_epoch: int | None = None
    seq: int | None = None
    age_ms: float = 0.0
    state: str = ""
    flags: tuple[str, ...] = ()
    gaps: tuple[tuple[str, int], ...] = ()
    counters: Counters | None = None


def seen(record: Record) -> Seen:
    """What there is to say of a record that has just come."""
    now_s = time.monotonic()
    if isinstance(record, HelloRecord):
        return Seen(Kind.HELLO, now_s, record.instance)
    gaps = tuple((str(gap.kind), gap.count) for gap in record.gaps)
    common = Seen(Kind.STATUS, now_s, record.instance, record.camera, record.stream_epoch, gaps=gaps)
    match record:
        case FeaturesRecord():
            age_ms = now_s * 1e3 - record.capture_monotonic_ns / 1e6
            return replace(common, kind=Kind.FEATURES, seq=record.seq, age_ms=age_ms, flags=record.flags)
        case StatusRecord():
            return replace(common, state=record.state, counters=_counters(record, record.in_flight))
        case EndRecord():
            counters = _counters(record, 0)
            return replace(common, kind=Kind.END, seq=record.next_seq, state=record.reason, counters=counters)


def _counters(record: StatusRecord | EndRecord, in_flight: int) -> Counters:
    totals = (record.captured_total, record.published_total, record.dropped_total, record.failed_total)
    return Counters(*totals, in_flight)


def main(endpoint: str, file: Path, pause_s: float) -> None:
    """Listen until killed. The file is written without a buffer, so that nothing is lost then."""
    encoder = msgspec.json.Encoder()
    with file.open("ab", buffering=0) as sink, Subscriber(endpoint, kinds=tuple(Kind)) as subscriber:
        for record in subscriber:
            sink.write(encoder.encode(seen(record)) + b"\n")
            time.sleep(pause_s)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
