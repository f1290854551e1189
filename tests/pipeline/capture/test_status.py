"""A camera's status follows its events, and each change is reported once."""

from retinad.pipeline.capture.status import CameraState, CameraStatus, StatusReporter
from retinad.pipeline.errors import SourceFault
from retinad.pipeline.sources.reader import SourceInfo

S = CameraState


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_frame_is_reported_only_if_it_is_the_first_or_has_a_new_size() -> None:
    reported: list[CameraStatus] = []
    reporter = StatusReporter("cam", reported.append, Clock())
    reporter.opened(3, SourceInfo(backend="v4l2"))
    assert reported == []
    for size, first in (((64, 48), True), ((64, 48), False), ((32, 24), False)):
        reporter.frame_arrived(size, first=first)
    assert [(status.state, status.stream_epoch, status.size) for status in reported] == [
        (S.RUNNING, 3, (64, 48)),
        (S.RUNNING, 3, (32, 24)),
    ]


def test_a_stall_is_reported_before_its_backoff() -> None:
    reported: list[CameraStatus] = []
    clock = Clock()
    reporter = StatusReporter("cam", reported.append, clock)
    reporter.failed(SourceFault.STALLED, "no new frame for 1 s", failures=2, delay_s=4.0)
    assert [(status.state, status.attempt, status.next_try_s) for status in reported] == [
        (S.STALLED, 2, None),
        (S.BACKOFF, 2, 4.0),
    ]
    clock.now_s += 3.0
    assert reporter.status.next_try_s == 1.0
    status = reporter.enter(S.CONNECTING)
    assert (status.next_try_s, status.reason) == (None, None)


def test_the_age_of_a_frame_grows_and_its_rate_is_cleared_when_the_source_fails() -> None:
    clock = Clock()
    reporter = StatusReporter("cam", lambda status: None, clock)
    before = reporter.status
    for first in (True, False, False):
        clock.now_s += 0.5
        reporter.frame_arrived((64, 48), first=first)
    clock.now_s += 1.0
    running = reporter.status
    assert (before.last_frame_age_s, running.last_frame_age_s, running.fps) == (None, 1.0, 2.0)
    reporter.failed(SourceFault.CLOSED, "closed", failures=1, delay_s=1.0)
    assert reporter.status.fps == 0.0
