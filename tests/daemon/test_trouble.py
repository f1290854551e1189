"""What goes wrong frame by frame is in the log, but cannot flood it."""

from structlog.testing import capture_logs

from retinad.daemon.trouble import failure_log, line_log
from retinad.pipeline.frames import FrameFailure, FrameStamp


def failure(camera: str, number: int) -> FrameFailure:
    return FrameFailure(FrameStamp(camera, 0, number, 0, 0, None, (4, 4)), "out of memory")


def test_frames_that_fail_are_logged_a_few_at_a_time_for_each_camera() -> None:
    log = failure_log()
    with capture_logs() as events:
        for number in range(100):
            log(failure("a", number))
        log(failure("b", 0))
    assert [(event["camera"], event["source_seq"]) for event in events] == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]
    assert {(event["log_level"], event["reason"]) for event in events} == {("warning", "out of memory")}


def test_damage_is_a_warning_a_few_lines_at_a_time_and_all_else_is_for_those_who_debug() -> None:
    hear = line_log("a")
    with capture_logs() as events:
        hear("[OPENCV:FFMPEG:24] deprecated pixel format used")
        for number in range(100):
            hear(f"left out: /data/{number}.png: the file is empty")
    assert [event["log_level"] for event in events] == ["debug", "warning", "warning", "warning"]
    assert events[1]["event"] == "left out: /data/0.png: the file is empty"
    assert {event["camera"] for event in events} == {"a"}
