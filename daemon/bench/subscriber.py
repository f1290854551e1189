"""The subscriber of `retinad bench`, a process: `python -m retinad.daemon.bench.subscriber ENDPOINT CAMERAS`.

It receives until so many cameras have ended, then writes what it noticed of each record to standard output.
"""

import sys
import time

import msgspec

from retinad.client import EndRecord, FeaturesRecord, Kind, Record, Subscriber


class Noticed(msgspec.Struct, frozen=True, array_like=True):
    """One record, as it came.

    Attributes:
        camera: whose.
        epoch, epoch_frame: its place in the stream's memory.
        warmup: whether it waited for the rest of its stream's first block.
        receive_ns: monotonic time at which it was there.
        capture_to_publish_us, capture_to_receive_us: microseconds since its frame's capture.
        queue_us, preprocess_us, model_us, publish_us: parts of the former.
    """

    camera: str
    epoch: int
    epoch_frame: int
    warmup: bool
    receive_ns: int
    capture_to_publish_us: float
    capture_to_receive_us: float
    queue_us: int
    preprocess_us: int
    model_us: int
    publish_us: int


class Heard(msgspec.Struct, frozen=True):
    """All that came.

    Attributes:
        records: the records.
        lost: records that did not come.
        captured, published, dropped, failed: what became of the frames, as the cameras' ends say.
    """

    records: tuple[Noticed, ...]
    lost: int
    captured: int
    published: int
    dropped: int
    failed: int


def listen(endpoint: str, cameras: int) -> Heard:
    """Receive until so many cameras have ended."""
    noticed: list[Noticed] = []
    ends: list[EndRecord] = []
    lost = 0
    with Subscriber(endpoint, kinds=(Kind.FEATURES, Kind.END)) as subscriber:
        while len(ends) < cameras:
            record = subscriber.receive()
            lost += _lost(record)
            if isinstance(record, FeaturesRecord):
                noticed.append(_notice(record, time.monotonic_ns()))
            elif isinstance(record, EndRecord):
                ends.append(record)
    return Heard(
        records=tuple(noticed),
        lost=lost,
        captured=sum(end.captured_total for end in ends),
        published=sum(end.published_total for end in ends),
        dropped=sum(end.dropped_total for end in ends),
        failed=sum(end.failed_total for end in ends),
    )


def _lost(record: Record) -> int:
    return sum(gap.count for gap in record.gaps if gap.kind == "wire_loss")


def _notice(record: FeaturesRecord, now_ns: int) -> Noticed:
    parts = record.latency_us
    return Noticed(
        camera=record.camera,
        epoch=record.epoch,
        epoch_frame=record.epoch_frame,
        warmup="warmup" in record.flags,
        receive_ns=now_ns,
        capture_to_publish_us=(record.publish_unix_ns - record.capture_unix_ns) / 1e3,
        capture_to_receive_us=(now_ns - record.capture_monotonic_ns) / 1e3,
        queue_us=parts.queue,
        preprocess_us=parts.preprocess,
        model_us=parts.model,
        publish_us=parts.publish,
    )


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(listen(sys.argv[1], int(sys.argv[2]))))
