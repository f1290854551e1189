"""The reason of a failure is found in the log of FFmpeg and OpenCV."""

from pathlib import Path

import cv2
import pytest

from retinad.pipeline.capture.faults import classify, is_damage
from retinad.pipeline.errors import SourceFault

from .reading import failure
from .rig import lossless
from .servers import draw_number

NOISE = "[ WARN:0@0.012] global cap.cpp:212 open VIDEOIO(FFMPEG): backend is generally available but can't be used"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("[OPENCV:FFMPEG:16] method OPTIONS failed: 401 (Unauthorized)", SourceFault.AUTH),
        ("[OPENCV:FFMPEG:16] method DESCRIBE failed: 403 Forbidden", SourceFault.AUTH),
        ("[OPENCV:FFMPEG:16] method DESCRIBE failed: 404 Not Found", SourceFault.NOT_FOUND),
        ("[OPENCV:FFMPEG:16] method SETUP failed: 461 Unsupported transport", SourceFault.REFUSED),
        ("[OPENCV:FFMPEG:24] HTTP error 404 Nope", SourceFault.NOT_FOUND),
        ("[OPENCV:FFMPEG:24] HTTP error 500 Nope", SourceFault.REFUSED),
        (
            "[OPENCV:FFMPEG:16] Connection to tcp://127.0.0.1:404?timeout=0 failed: Connection refused",
            SourceFault.REFUSED,
        ),
        ("[OPENCV:FFMPEG:16] Connection to tcp://10.0.0.1:401 failed: No route to host", SourceFault.REFUSED),
        ("[OPENCV:FFMPEG:16] Failed to resolve hostname no.invalid: Name or service not known", SourceFault.MISSING),
        ("[OPENCV:FFMPEG:16] Protocol 'file' not on whitelist 'http,https,tls,rtp,tcp'!", SourceFault.REFUSED),
        ("[OPENCV:FFMPEG:16] error:1408F10B:SSL routines:ssl3_get_record:wrong version number", SourceFault.TLS),
        ("[ WARN:0@2.011] global x.hpp:453 _cb Stream timeout triggered after 2004.156204 ms", SourceFault.TIMEOUT),
        ("[OPENCV:FFMPEG:24] Failed reading RTSP data: End of file", SourceFault.CLOSED),
        (
            "[OPENCV:FFMPEG:16] Your platform doesn't support hardware accelerated AV1 decoding.",
            SourceFault.CODEC,
        ),
        ("[OPENCV:FFMPEG:16] moov atom not found", SourceFault.UNREADABLE),
    ],
)
def test_lines_are_classified(line: str, fault: SourceFault) -> None:
    found = classify([NOISE, line, NOISE])
    assert found is not None
    assert found[0] is fault
    assert line.rpartition("] ")[2][-20:] in found[1], "the library's own words are in the message"


def test_a_codec_without_a_decoder_is_named() -> None:
    found = classify(["[OPENCV:FFMPEG:16] Your platform doesn't support hardware accelerated VVC decoding."])
    assert found is not None
    assert "no decoder for VVC" in found[1]


def test_noise_is_not_classified() -> None:
    assert classify([NOISE, "[OPENCV:FFMPEG:24] deprecated pixel format used"]) is None


@pytest.mark.parametrize(
    "line",
    [
        "[OPENCV:FFMPEG:24] Packet corrupt (stream = 0, dts = 207000).",
        "[OPENCV:FFMPEG:16] error while decoding MB 9 14, bytestream -5",
        "[OPENCV:FFMPEG:24] EOI missing, emulating",
        "[OPENCV:FFMPEG:24] RTP: missed 12 packets",
        "left out: /data/a.png: the file is empty",
    ],
)
def test_damage_is_distinguished_from_noise(line: str) -> None:
    assert is_damage(line)
    assert not is_damage("[OPENCV:FFMPEG:16] method OPTIONS failed: 401 (Unauthorized)"), "it damages no frame"
    assert not is_damage("[OPENCV:FFMPEG:24] deprecated pixel format used, make sure you did set range correctly")


@pytest.mark.anyio
async def test_a_video_whose_codec_has_no_decoder_fails_with_its_name(tmp_path: Path) -> None:
    """OpenCV opens AV1 and then decodes none of it."""
    path = tmp_path / "a.avif"
    path.write_bytes(cv2.imencode(".avif", draw_number(5))[1].tobytes())
    exc = await failure(lossless(path))
    assert exc.fault is SourceFault.CODEC
    assert "no decoder for AV1" in str(exc)
