"""Videos and streams: timestamps, errors, and the settings that they are opened with."""

import time
from pathlib import Path

import pytest

from retinad.pipeline.errors import SourceError, SourceFault
from retinad.pipeline.sources import video
from retinad.pipeline.sources.opencv import CaptureBackend, Property, VideoCapture
from retinad.pipeline.sources.video import VideoReader, open_file, open_stream

from ..capture.rig import live, lossless


class FakeCapture(VideoCapture):
    """A capture whose frames are at these positions."""

    def __init__(self, *positions_ms: float | None) -> None:
        self._positions_ms = iter(positions_ms)

    def get(self, prop: Property) -> float | None:
        return next(self._positions_ms) if prop is Property.POSITION_MS else 0.0

    def set(self, prop: Property, value: float) -> bool:
        return True

    def grab(self) -> bool:
        return True


class FakeLog:
    """A log without lines."""

    decoder_setups = 1
    refused = 0
    torn = 0
    complaints = 0
    interlaced = False
    cut_off = False

    def catch_up(self) -> None:
        pass

    def close(self) -> None:
        pass


def times_ns(*positions_ms: float | None) -> list[int | None]:
    reader = VideoReader(FakeCapture(*positions_ms), FakeLog(), "a.h264", ends=True)
    grabbed = [reader.grab() for _ in positions_ms]
    return [frame.pts_ns for frame in grabbed if frame is not None]


def test_a_position_that_does_not_change_is_none() -> None:
    """Raw H.264 has no timestamps: OpenCV reports 0 for each frame."""
    assert times_ns(0.0, 0.0, 0.0) == [0, None, None]
    assert times_ns(0.0, 100.0, 600.0, 0.0, 40.0) == [0, 100_000_000, 600_000_000, 0, 40_000_000]
    assert times_ns(None, None) == [None, None]


@pytest.mark.parametrize(
    ("complaints", "said"),
    [(0, r"sent nothing for \d+ s"), (3, r"sent data for \d+ s, but no picture could be decoded")],
)
def test_a_stream_that_is_silent_is_told_from_one_that_cannot_be_decoded(complaints: int, said: str) -> None:
    """FFmpeg complains about data that it cannot decode; about silence it says nothing."""
    log = FakeLog()

    class Silent(FakeCapture):
        def grab(self) -> bool:
            log.complaints += complaints
            time.sleep(0.02)
            return False

    reader = VideoReader(Silent(), log, "rtsp://h/x", ends=False, timeout_s=0.01)
    with pytest.raises(SourceError, match=said) as caught:
        reader.grab()
    assert caught.value.fault is SourceFault.STALLED


def test_a_file_that_vanishes_before_it_is_opened_is_missing() -> None:
    with pytest.raises(SourceError, match="no longer exists") as caught:
        open_file("/nothere.mp4", lossless("/nothere.mp4"))
    assert caught.value.fault is SourceFault.MISSING


def test_a_forbidden_file_is_distinguished_from_a_damaged_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = str(tmp_path / "a.mp4")
    Path(path).write_text("x")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(SourceError, match="owner or mode") as caught:
        open_file(path, lossless(path))
    assert caught.value.fault is SourceFault.PERMISSION


def test_the_backend_the_orientation_and_the_timeouts_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By default OpenCV silently picks another backend, rotates images depending on its release, and waits for 30 s."""
    opened: list[tuple[object, ...]] = []

    class Opened(FakeCapture):
        def __init__(self, *arguments: object) -> None:
            super().__init__()
            opened.append(arguments)

        def set(self, prop: Property, value: float) -> bool:
            opened.append((prop, value))
            return True

        def close(self) -> None:
            pass

    monkeypatch.setattr(video, "VideoCapture", Opened)
    (tmp_path / "a.mp4").write_text("x")
    for open_one, source in ((open_file, str(tmp_path / "a.mp4")), (open_stream, "rtsp://h/x")):
        open_one(source, live(source, connect_timeout_s=3, stall_timeout_s=7)).close()
        (path, backend, settings, *_), orientation = opened[-2:]
        assert (path, backend, orientation) == (source, CaptureBackend.FFMPEG, (Property.AUTO_ORIENTATION, 1))
        assert isinstance(settings, dict)
        assert (settings[Property.OPEN_TIMEOUT_MS], settings[Property.READ_TIMEOUT_MS]) == (3000, 7000)
