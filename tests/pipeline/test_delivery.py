"""Records of one connection are numbered without gaps, and the `end` message has the number after the last record's."""

import pytest

from retinad.client.gaps import GapTracker
from retinad.client.wire import EndHeader, FeaturesHeader, ModelHeader
from retinad.pipeline.config import CaptureMode
from retinad.pipeline.delivery import Delivery
from retinad.pipeline.frame_queue import FrameQueues
from retinad.pipeline.frames import Features, FrameFailure, FrameStamp
from retinad.pipeline.publish.encode import features_header


class Sink:
    """Keeps the numbers of published records."""

    def __init__(self) -> None:
        self.headers: list[FeaturesHeader] = []

    def publish_features(self, features: Features, **numbers: int) -> None:
        self.headers.append(
            features_header(features, instance="a", model=ModelHeader(name="m", weights="w"), **numbers)
        )


def stamp(stream_epoch: int, source_seq: int) -> FrameStamp:
    return FrameStamp("cam", stream_epoch, source_seq, 0, 0, None, (1, 1))


def record(stream_epoch: int, source_seq: int) -> Features:
    unit = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
    return Features(stamp(stream_epoch, source_seq), 0, 0, True, frozenset(), (1, 1), (1, 1), unit, ())


def deliver(outcomes: list[Features | FrameFailure]) -> tuple[Delivery, Sink, list[FrameFailure]]:
    queues, sink, failures = FrameQueues(), Sink(), list[FrameFailure]()
    queues.open("cam", CaptureMode.LIVE, 2).counters.captured = len(outcomes)
    delivery = Delivery(queues, sink, failures.append)
    delivery.deliver(outcomes, 0)
    assert queues["cam"].counters.in_flight == 0
    return delivery, sink, failures


def test_numbers_have_no_gaps_and_restart_with_each_connection() -> None:
    failure = FrameFailure(stamp(0, 2), "no")
    _, sink, failures = deliver([record(0, 0), failure, record(0, 3), record(1, 0), record(1, 5)])
    assert [(header.stream_epoch, header.seq) for header in sink.headers] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [header.failed_total for header in sink.headers] == [0, 1, 1, 1]
    assert failures == [failure]


@pytest.mark.parametrize(("stream_epoch", "next_seq"), [(1, 2), (2, 0)], ids=["last record's", "without a record"])
def test_an_end_right_after_the_last_record_reports_no_loss(stream_epoch: int, next_seq: int) -> None:
    """No loss is reported even if the source was reconnected and sent no frame. A connection has its own numbers."""
    delivery, sink, _ = deliver([record(0, 0), record(1, 0), record(1, 1)])
    assert delivery.next_seq("cam", stream_epoch) == next_seq
    tracker = GapTracker()
    for header in sink.headers:
        tracker.before_record(header)
    end = EndHeader(camera="cam", instance="a", reason="stopped", stream_epoch=stream_epoch, next_seq=next_seq)
    assert tracker.before_end(end) == ()


def test_a_forgotten_camera_starts_at_zero() -> None:
    delivery, _, _ = deliver([record(0, 0), record(0, 1)])
    delivery.forget("cam")
    delivery.forget("cam")
    assert delivery.next_seq("cam", 0) == 0
