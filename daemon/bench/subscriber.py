"""The subscriber process of `retinad bench`: `python -m retinad.daemon.bench.subscriber ENDPOINT CAMERAS`.

It receives messages until CAMERAS cameras have ended, then writes a summary of each record to standard output.
"""

import sys
import time

import msgspec

from retinad.client import EndRecord, FeaturesRecord, Kind, Record, Subscriber


class RecordTiming(msgspec.Struct, frozen=True, array_like=True):
    """The summary of one record.

    Attributes:
        camera: name of the camera.
        epoch, epoch_frame: number of the epoch, and number of the frame within the epoch.
        warmup: whether the frame had to wait for the rest of its stream's first block.
        receive_ns: monotonic time at which the record arrived.
        capture_to_publish_us, capture_to_receive_us: microseconds since the capture of the frame.
        queue_us, preprocess_us, model_us, publish_us: the phases of `capture_to_publish_us`.
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


class Received(msgspec.Struct, frozen=True):
    """Everything that the subscriber received.

    Attributes:
        records: summaries of the records.
        lost: number of records that did not arrive.
        captured, published, dropped, failed: numbers of frames, from the cameras' `end` messages.
    """

    records: tuple[RecordTiming, ...]
    lost: int
    captured: int
    published: int
    dropped: int
    failed: int


def listen(endpoint: str, cameras: int) -> Received:
    """Receive messages until `cameras` cameras have ended."""
    timings: list[RecordTiming] = []
    ends: list[EndRecord] = []
    lost = 0
    with Subscriber(endpoint, kinds=(Kind.FEATURES, Kind.END)) as subscriber:
        while len(ends) < cameras:
            record = subscriber.receive()
            lost += _lost(record)
            if isinstance(record, FeaturesRecord):
                timings.append(_timing(record, time.monotonic_ns()))
            elif isinstance(record, EndRecord):
                ends.append(record)
    return Received(
        records=tuple(timings),
        lost=lost,
        captured=sum(end.captured_total for end in ends),
        published=sum(end.published_total for end in ends),
        dropped=sum(end.dropped_total for end in ends),
        failed=sum(end.failed_total for end in ends),
    )


def _lost(record: Record) -> int:
    return sum(gap.count for gap in record.gaps if gap.kind == "wire_loss")


def _timing(record: FeaturesRecord, now_ns: int) -> RecordTiming:
    parts = record.latency_us
    return RecordTiming(
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
