"""Of FFmpeg's log, warnings and errors alone get through, and no request with a password in it."""

import os
import sys
from collections.abc import Callable, Iterator

import pytest

from retinad.pipeline.sources.ffmpeg_log import FFmpegLog


@pytest.fixture
def heard(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[FFmpegLog, list[str]]]]:
    logs = []

    def hear(*chunks: str) -> tuple[FFmpegLog, list[str]]:
        log = FFmpegLog()
        logs.append(log)
        for chunk in chunks:
            os.write(2, chunk.encode())
            log.catch_up()
        log.close()
        return log, capfd.readouterr().err.splitlines()

    yield hear
    for log in logs:
        log.close()


Heard = Callable[..., tuple[FFmpegLog, list[str]]]


def test_warnings_and_errors_get_through(heard: Heard) -> None:
    lines = [
        "[OPENCV:FFMPEG:24] Packet corrupt",
        "[OPENCV:FFMPEG:16] moov atom not found",
        "[ WARN:0@0.1] global x.cpp",
    ]
    noise = ["[OPENCV:FFMPEG:40] Statistics", "[OPENCV:FFMPEG:48] marker=d8", "[OPENCV:FFMPEG:56] x"]
    mixed = [line for pair in zip(noise, lines, strict=True) for line in pair]
    assert heard("\n".join(mixed) + "\n")[1] == lines


def test_what_the_service_says_better_does_not_get_through(heard: Heard) -> None:
    """A stream that closes without a length is no damage; a file that is cut off is."""
    endless = f"[OPENCV:FFMPEG:16] Stream ends prematurely at 1101131, should be {2**64 - 1}\n"
    log, lines = heard(endless, "[OPENCV:FFMPEG:24] deprecated pixel format used, make sure you did set range\n")
    assert (log.cut_off, lines) == (True, [])
    cut_off = "[OPENCV:FFMPEG:16] Stream ends prematurely at 1, should be 2"
    assert heard(cut_off + "\n")[1] == [cut_off]


def test_no_request_gets_through(heard: Heard) -> None:
    request = "[OPENCV:FFMPEG:48] request: GET /x HTTP/1.1\r\nAuthorization: Basic YWRtaW46czNjcmV0\r\nHost: h\r\n\r\n"
    assert heard(request, "[OPENCV:FFMPEG:24] after\ngoes on\n")[1] == ["[OPENCV:FFMPEG:24] after", "goes on"]
    cut = "[OPENCV:FFMPEG:48] GET\nAuthorization: Basic YWRtaW46"
    assert heard(cut, "czNjcmV0[OPENCV:FFMPEG:16] HTTP error 404\n")[1] == ["[OPENCV:FFMPEG:16] HTTP error 404"]
    assert heard(cut)[1] == []


def test_what_only_the_log_tells_is_noted(heard: Heard) -> None:
    log, _ = heard(
        "[OPENCV:FFMPEG:48] Format hls probed with size=2048 and score=100\n",
        "[OPENCV:FFMPEG:48] Format mpegts probed with size=2048 and score=50\n",
        "[OPENCV:FFMPEG:48] no picture [OPENCV:FFMPEG:48] Format yuv420p chosen by get_format().\n" * 3,
    )
    assert (log.container, log.set_ups, log.cut_off) == ("hls", 3, False)
    assert heard("[OPENCV:FFMPEG:16] Stream ends prematurely at 1, should be 2\n")[0].cut_off


def test_a_request_after_which_nothing_is_read_or_said_was_answered_with_401(heard: Heard) -> None:
    request, read = "[OPENCV:FFMPEG:48] request: GET /x HTTP/1.1\r\n\r\n", "[OPENCV:FFMPEG:40] Statistics: 3\n"
    assert heard(request)[0].login_unknown
    assert heard(request, request)[0].login_unknown, "a redirection may lead there"
    assert not heard(request * 9)[0].login_unknown, "redirections that go round"
    assert not heard(request, read)[0].login_unknown
    assert not heard("[OPENCV:FFMPEG:48] OPTIONS\n")[0].login_unknown


def test_what_python_prints_goes_past_it_and_output_is_given_back(capfd: pytest.CaptureFixture[str]) -> None:
    before = os.listdir("/proc/self/fd")
    log = FFmpegLog()
    os.write(2, b"[OPENCV:FFMPEG:48] x\n")
    sys.stderr.write("left out: a.png\n")
    log.close()
    log.close()
    os.write(2, b"afterwards\n")
    sys.stderr.write("as before\n")
    assert capfd.readouterr().err == "left out: a.png\nafterwards\nas before\n"
    assert os.listdir("/proc/self/fd") == before


def test_it_never_holds_up_what_prints() -> None:
    """A damaged stream prints megabytes within one call of OpenCV; a pipe holds 64 KiB."""
    log = FFmpegLog()
    for _ in range(20_000):
        os.write(2, b"[OPENCV:FFMPEG:48] Format yuv420p chosen by get_format().\n")
    log.close()
    assert log.set_ups == 20_000
