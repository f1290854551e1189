"""The cameras' log: a new problem is a warning, a repeated one is not, and damage is counted."""

from dataclasses import replace

import structlog

from retinad.daemon.service.camera_log import CameraLog
from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.errors import SourceFault
from retinad.pipeline.sources.reader import SourceInfo

PROBLEM = CameraStatus("a", CameraState.BACKOFF, SourceFault.REFUSED, "nothing listens", attempt=1)


def levels(statuses: list[CameraStatus]) -> list[str]:
    with structlog.testing.capture_logs() as lines:
        log = CameraLog("a")
        for status in statuses:
            log.state(status)
    return [line["log_level"] for line in lines]


def test_a_repeated_problem_is_a_warning_once_and_at_milestones() -> None:
    connecting = CameraStatus("a", CameraState.CONNECTING)
    tries = [replace(PROBLEM, attempt=number) for number in range(1, 12)]
    seen = levels([step for status in tries for step in (connecting, status)])
    assert [seen[0], seen[1]] == ["info", "warning"]
    assert [number for number, level in enumerate(seen[1::2], 1) if level == "warning"] == [1, 10]
    assert set(seen[2::2]) == {"debug"}


def test_another_problem_is_a_warning_again_and_so_is_the_same_one_after_it_ran() -> None:
    other = replace(PROBLEM, reason="it did not answer", attempt=2)
    running = CameraStatus("a", CameraState.RUNNING)
    assert levels([PROBLEM, other, running, other]) == ["warning", "warning", "info", "warning"]


def test_later_passes_of_a_looped_source_are_debug_messages() -> None:
    passes = [CameraStatus("a", CameraState.RUNNING, stream_epoch=n, size=(64, 48)) for n in range(3)]
    connecting = CameraStatus("a", CameraState.CONNECTING)
    assert levels([connecting, *passes]) == ["info", "info", "debug", "debug"]
    assert levels([passes[0], replace(passes[0], size=(32, 24))]) == ["info", "info"]
    assert levels([passes[0], PROBLEM, passes[1]]) == ["info", "warning", "info"]


def test_a_problem_whose_numbers_change_is_the_same_problem() -> None:
    tries = [replace(PROBLEM, reason=f"no answer after {3000 + number}.5 ms", attempt=number) for number in range(1, 5)]
    assert levels(tries) == ["warning", "debug", "debug", "debug"]


def test_three_damaged_images_are_logged_at_the_default_level_and_the_rest_are_counted() -> None:
    with structlog.testing.capture_logs() as lines:
        log = CameraLog("a")
        for number in range(5):
            log.line(f"left out: pics/{number}.png: it is not an image")
        log.line("[mjpeg] something from a library")
        log.close()
        log.close()
    assert [(line["event"], line["log_level"], line.get("lines")) for line in lines] == [
        *((f"left out: pics/{number}.png: it is not an image", "warning", None) for number in range(3)),
        ("[mjpeg] something from a library", "debug", None),
        ("more damaged input", "warning", 2),
    ]


def test_a_drivers_deviation_is_a_warning_once_and_not_at_each_connection() -> None:
    info = SourceInfo("v4l2", notes=("asked MJPG, got YUYV", "asked 30 frames/s, got 10"))
    running, other = (
        CameraStatus("a", CameraState.RUNNING, info=i) for i in (info, replace(info, notes=("asked 30, got 5",)))
    )
    with structlog.testing.capture_logs() as lines:
        log = CameraLog("a")
        for status in (CameraStatus("a", CameraState.CONNECTING), running, replace(PROBLEM, info=info), running, other):
            log.state(status)
    warned = [line["event"] for line in lines if line["log_level"] == "warning" and "asked" in line["event"]]
    assert warned == ["asked MJPG, got YUYV", "asked 30 frames/s, got 10", "asked 30, got 5"]


def test_advice_about_a_source_is_given_once_however_often_it_is_opened() -> None:
    """Between two connections nothing is known about the source."""
    running = CameraStatus("a", CameraState.RUNNING, info=SourceInfo("ffmpeg", notes=("frames are woven",)))
    with structlog.testing.capture_logs() as lines:
        log = CameraLog("a")
        for _ in range(3):
            for status in (CameraStatus("a", CameraState.CONNECTING), running, PROBLEM):
                log.state(status)
    assert [line["event"] for line in lines].count("frames are woven") == 1
