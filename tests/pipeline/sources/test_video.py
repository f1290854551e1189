"""What OpenCV says of a video's times."""

import pytest

from retinad.pipeline.errors import SourceError, SourceFault
from retinad.pipeline.sources.opencv import Property, Stream
from retinad.pipeline.sources.video import VideoReader, open_file

from .rig import lossless


class FakeStream(Stream):
    """A stream whose frames are at these times."""

    def __init__(self, *positions_ms: float | None) -> None:
        self._positions_ms = iter(positions_ms)

    def get(self, prop: Property) -> float | None:
        return next(self._positions_ms) if prop is Property.POSITION_MS else 0.0

    def set(self, prop: Property, value: float) -> bool:
        return True

    def grab(self) -> bool:
        return True


class FakeLog:
    """Says nothing."""

    set_ups = 1
    cut_off = False

    def catch_up(self) -> None:
        pass

    def close(self) -> None:
        pass


def times_ns(*positions_ms: float | None) -> list[int | None]:
    reader = VideoReader(FakeStream(*positions_ms), FakeLog(), "a.h264", ends=True)
    grabbed = [reader.grab() for _ in positions_ms]
    return [frame.pts_ns for frame in grabbed if frame is not None]


def test_a_time_that_stands_still_is_none() -> None:
    """Raw H.264 has no times: OpenCV says 0 for each of its frames."""
    assert times_ns(0.0, 0.0, 0.0) == [0, None, None]
    assert times_ns(0.0, 100.0, 600.0, 0.0, 40.0) == [0, 100_000_000, 600_000_000, 0, 40_000_000]
    assert times_ns(None, None) == [None, None]


def test_a_file_that_is_gone_when_it_is_opened_is_missing() -> None:
    with pytest.raises(SourceError, match="any more") as caught:
        open_file("/nothere.mp4", lossless("/nothere.mp4"))
    assert caught.value.fault is SourceFault.MISSING
