"""A subscriber program that writes each record it receives to a file, as one JSON object a line.

`python subscribe.py ENDPOINT FILE PAUSE_S` runs until it is killed. A pause after each record makes it slow.
"""

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from retinad.client import EndRecord, FeaturesRecord, HelloRecord, Kind, Record, StatusRecord, Subscriber


@dataclass(frozen=True)
class Counters:
    """A camera's frames by outcome, as the service counts them."""

    captured: int
    published: int
    dropped: int
    failed: int
    in_flight: int = 0

    @property
    def add_up(self) -> bool:
        return self.captured == self.published + self.dropped + self.failed + self.in_flight


@dataclass(frozen=True)
class Received:
    """The parts of a received record that the soak tests assert on.

    Attributes:
        kind: the kind of message.
        at_s: `time.monotonic()` at reception; all processes share this clock.
        instance: the service's instance.
        camera: empty for hello.
        stream_epoch: of a features record, or the last one before an end.
        seq: of a features record; of an end, the number that would have come next.
        age_ms: capture to reception, of a features record.
        state: of a status; of an end, its reason.
        flags: of a features record.
        gaps: pairs such as `("wire_loss", 3)`: the kind, and how many records are missing.
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


def summarize(record: Record) -> Received:
    """Summarize a record that has just arrived."""
    now_s = time.monotonic()
    if isinstance(record, HelloRecord):
        return Received(Kind.HELLO, now_s, record.instance)
    gaps = tuple((str(gap.kind), gap.count) for gap in record.gaps)
    common = Received(Kind.STATUS, now_s, record.instance, record.camera, record.stream_epoch, gaps=gaps)
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
    """Receive until killed. The file is unbuffered, so that a kill loses no line."""
    encoder = msgspec.json.Encoder()
    with file.open("ab", buffering=0) as sink, Subscriber(endpoint, kinds=tuple(Kind)) as subscriber:
        for record in subscriber:
            sink.write(encoder.encode(summarize(record)) + b"\n")
            time.sleep(pause_s)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
