"""Only warnings and errors of FFmpeg's log are forwarded, and no request with a password in it."""

import os
import sys
from collections.abc import Callable, Iterator

import pytest

from retinad.pipeline.sources.ffmpeg_log import FFmpegLog


@pytest.fixture
def read_log(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[FFmpegLog, list[str]]]]:
    logs = []

    def read(*chunks: str) -> tuple[FFmpegLog, list[str]]:
        log = FFmpegLog()
        logs.append(log)
        for chunk in chunks:
            os.write(2, chunk.encode())
            log.catch_up()
        log.close()
        return log, capfd.readouterr().err.splitlines()

    yield read
    for log in logs:
        log.close()


ReadLog = Callable[..., tuple[FFmpegLog, list[str]]]


def test_warnings_and_errors_are_forwarded(read_log: ReadLog) -> None:
    lines = [
        "[OPENCV:FFMPEG:24] Packet corrupt",
        "[OPENCV:FFMPEG:16] moov atom not found",
        "[ WARN:0@0.1] global x.cpp",
    ]
    noise = ["[OPENCV:FFMPEG:40] Statistics", "[OPENCV:FFMPEG:48] marker=d8", "[OPENCV:FFMPEG:56] x"]
    mixed = [line for pair in zip(noise, lines, strict=True) for line in pair]
    assert read_log("\n".join(mixed) + "\n")[1] == lines


def test_lines_that_the_service_reports_better_are_not_forwarded(read_log: ReadLog) -> None:
    """The end of a stream without a length is no damage; that of a truncated file is."""
    endless = f"[OPENCV:FFMPEG:16] Stream ends prematurely at 1101131, should be {2**64 - 1}\n"
    log, lines = read_log(endless, "[OPENCV:FFMPEG:24] deprecated pixel format used, make sure you did set range\n")
    assert (log.cut_off, lines) == (True, [])
    cut_off = "[OPENCV:FFMPEG:16] Stream ends prematurely at 1, should be 2"
    assert read_log(cut_off + "\n")[1] == [cut_off]


def test_no_request_is_forwarded(read_log: ReadLog) -> None:
    request = "[OPENCV:FFMPEG:48] request: GET /x HTTP/1.1\r\nAuthorization: Basic YWRtaW46czNjcmV0\r\nHost: h\r\n\r\n"
    assert read_log(request, "[OPENCV:FFMPEG:24] after\ngoes on\n")[1] == ["[OPENCV:FFMPEG:24] after", "goes on"]
    cut = "[OPENCV:FFMPEG:48] GET\nAuthorization: Basic YWRtaW46"
    assert read_log(cut, "czNjcmV0[OPENCV:FFMPEG:16] HTTP error 404\n")[1] == ["[OPENCV:FFMPEG:16] HTTP error 404"]
    assert read_log(cut)[1] == []


def test_facts_that_only_the_log_has_are_recorded(read_log: ReadLog) -> None:
    log, _ = read_log(
        "[OPENCV:FFMPEG:48] Format hls probed with size=2048 and score=100\n",
        "[OPENCV:FFMPEG:48] Format mpegts probed with size=2048 and score=50\n",
        "[OPENCV:FFMPEG:48] no image [OPENCV:FFMPEG:48] Format yuv420p chosen by get_format().\n" * 3,
    )
    assert (log.container, log.decoder_setups, log.cut_off) == ("hls", 3, False)
    assert read_log("[OPENCV:FFMPEG:16] Stream ends prematurely at 1, should be 2\n")[0].cut_off


def test_frames_that_are_not_converted_are_counted(read_log: ReadLog) -> None:
    """The service reports an interlaced frame in better words; of any other kind the line is the only reason."""
    reason = " (Invalid argument): fmt:yuv420p csp:unknown prim:unknown trc:unknown -> fmt:bgr24 csp:gbr prim:unknown\n"
    interlaced = "[OPENCV:FFMPEG:16] Cannot convert interlaced to progressive frames or vice versa.\n"
    log, lines = read_log((interlaced + reason) * 3)
    assert (log.refused, log.interlaced, lines) == (3, True, [])
    log, lines = read_log("[OPENCV:FFMPEG:16] Unsupported input" + reason)
    assert (log.refused, log.interlaced, len(lines)) == (1, False, 1)


def test_a_request_without_a_response_or_reason_was_answered_with_401(read_log: ReadLog) -> None:
    request, read = "[OPENCV:FFMPEG:48] request: GET /x HTTP/1.1\r\n\r\n", "[OPENCV:FFMPEG:40] Statistics: 3\n"
    assert read_log(request)[0].login_unknown
    assert read_log(request, request)[0].login_unknown, "a redirection may lead there"
    assert not read_log(request * 9)[0].login_unknown, "a redirection loop"
    assert not read_log(request, read)[0].login_unknown
    assert not read_log("[OPENCV:FFMPEG:48] OPTIONS\n")[0].login_unknown


def test_python_output_bypasses_the_log_and_descriptors_are_restored(capfd: pytest.CaptureFixture[str]) -> None:
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


def test_the_log_never_blocks_its_writers() -> None:
    """A damaged stream prints megabytes within one OpenCV call; a pipe holds 64 KiB."""
    log = FFmpegLog()
    for _ in range(20_000):
        os.write(2, b"[OPENCV:FFMPEG:48] Format yuv420p chosen by get_format().\n")
    log.close()
    assert log.decoder_setups == 20_000
