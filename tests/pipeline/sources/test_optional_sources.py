"""Sources that this build of OpenCV or FFmpeg lacks are named as missing; a pipeline's passwords are masked."""

import pytest

from retinad.pipeline.config import CameraConfig
from retinad.pipeline.errors import SourceError, SourceFault
from retinad.pipeline.frames import Pixels
from retinad.pipeline.sources import ffmpeg_protocols, opencv
from retinad.pipeline.sources.ffmpeg_protocols import check_protocol, has_protocol
from retinad.pipeline.sources.gstreamer_reader import PipelineReader
from retinad.pipeline.sources.opencv import CaptureBackend, Property, VideoCapture
from retinad.pipeline.sources.redact import mask
from retinad.pipeline.sources.registry import load_reader, parse_source

PIPELINE = "gstreamer:rtspsrc location=rtsp://u:s3cret@h/x user-pw=t0psecret ! appsink"


def test_ffmpegs_protocols_are_known() -> None:
    assert has_protocol("rtmp") in (True, None)
    assert has_protocol("udp") in (True, None)
    assert has_protocol("no-such") in (False, None)


@pytest.mark.parametrize("present", [True, None])
def test_a_protocol_that_may_be_there_is_tried(present: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffmpeg_protocols, "has_protocol", lambda scheme: present)
    check_protocol("srt")


def test_a_missing_protocol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffmpeg_protocols, "has_protocol", lambda scheme: False)
    for attempt in (parse_source("srt://h:1").check, lambda: load_reader(CameraConfig("cam", "srt://h:1"))):
        with pytest.raises(SourceError, match="built without SRT") as caught:
            attempt()
        assert caught.value.fault is SourceFault.UNREADABLE
    parse_source("rtmp://h/x").check()


def test_a_missing_gstreamer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencv, "has_backend", lambda backend: False)
    for attempt in (parse_source(PIPELINE).check, lambda: load_reader(CameraConfig("cam", PIPELINE))):
        with pytest.raises(SourceError, match="built without GStreamer"):
            attempt()
    monkeypatch.setattr(opencv, "has_backend", lambda backend: backend is CaptureBackend.GSTREAMER)
    parse_source(PIPELINE).check()
    assert callable(load_reader(CameraConfig("cam", PIPELINE)))


def test_the_passwords_of_a_pipeline_are_masked() -> None:
    assert "s3cret" not in repr(parse_source(PIPELINE))
    text = mask(f"could not link {PIPELINE}: t0psecret, s3cret", PIPELINE)
    assert "s3cret" not in text
    assert "t0psecret" not in text
    assert "rtspsrc" in text


def test_a_pipeline_that_ends_has_failed() -> None:
    class FakeCapture(VideoCapture):
        def __init__(self) -> None:
            self.left = 1

        def get(self, prop: Property) -> float | None:
            return {Property.WIDTH: 640.0, Property.HEIGHT: 480.0, Property.FPS: 0.0}[prop]

        def grab(self) -> bool:
            self.left -= 1
            return self.left >= 0

        def retrieve(self, out: Pixels | None) -> Pixels | None:
            return out

        def close(self) -> None:
            pass

    reader = PipelineReader(FakeCapture())
    assert (reader.info.width, reader.info.fps, reader.info.live) == (640, None, True)
    assert reader.grab() is not None
    with pytest.raises(SourceError) as caught:
        reader.grab()
    assert caught.value.fault is SourceFault.CLOSED
