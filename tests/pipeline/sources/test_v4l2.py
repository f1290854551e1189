"""Devices are asked in the right order, told the truth about, and found anew behind their links."""

import os
from pathlib import Path

import numpy as np
import pytest

from retinad.pipeline.errors import SourceError, SourceFault
from retinad.pipeline.sources import v4l2 as device
from retinad.pipeline.sources.opencv import Backend, Property, fourcc_number
from retinad.pipeline.sources.v4l2 import DeviceReader, check_device, open_device

from ..capture.rig import live


class FakeStream:
    """A driver that takes every setting and does as it likes."""

    def __init__(self, **got: float) -> None:
        self.asked: list[tuple[Property, float]] = []
        self.got = {Property[name]: value for name, value in got.items()}
        self.frames = 1

    def set(self, prop: Property, value: float) -> bool:
        self.asked.append((prop, value))
        return True

    def get(self, prop: Property) -> float | None:
        return self.got.get(prop)

    def grab(self) -> bool:
        self.frames -= 1
        return self.frames >= 0

    def retrieve(self, out: np.ndarray | None) -> np.ndarray | None:
        return None

    def close(self) -> None:
        pass


def reader(stream: FakeStream, path: str = "/dev/null", **changes: object) -> DeviceReader:
    return DeviceReader(path, live(path, **changes), stream)  # type: ignore[arg-type]


def test_format_comes_before_size_before_rate() -> None:
    stream = FakeStream()
    reader(stream, fourcc="MJPG", size=(1280, 720), fps=30.0)
    assert [prop for prop, _ in stream.asked] == [Property.FOURCC, Property.WIDTH, Property.HEIGHT, Property.FPS]


def test_nothing_is_asked_that_was_not_configured() -> None:
    stream = FakeStream()
    assert reader(stream).info.notes == ()
    assert stream.asked == []


def test_what_differs_is_noted() -> None:
    stream = FakeStream(FOURCC=fourcc_number("YUYV"), WIDTH=640, HEIGHT=480, FPS=10)
    info = reader(stream, fourcc="MJPG", size=(1280, 720), fps=30.0).info
    assert info.notes == ("asked MJPG, got YUYV", "asked 1280x720, got 640x480", "asked 30 frames/s, got 10")
    assert (info.width, info.height, info.fps, info.codec, info.live) == (640, 480, 10, "YUYV", True)


def test_what_agrees_is_not_noted() -> None:
    stream = FakeStream(FOURCC=fourcc_number("MJPG"), WIDTH=1280, HEIGHT=720, FPS=30)
    assert reader(stream, fourcc="MJPG", size=(1280, 720), fps=30.0).info.notes == ()


def test_a_bare_number_is_warned_of() -> None:
    (note,) = reader(FakeStream(), "/dev/video3").info.notes
    assert "/dev/v4l/by-id" in note


@pytest.mark.parametrize(("path", "fault"), [("/dev/null", SourceFault.STALLED), ("/dev/gone", SourceFault.MISSING)])
def test_a_device_that_stops_says_whether_it_is_still_there(path: str, fault: SourceFault) -> None:
    opened = reader(FakeStream(), path)
    assert opened.grab() is not None
    with pytest.raises(SourceError) as caught:
        opened.grab()
    assert caught.value.fault is fault


def test_links_are_followed_anew_and_the_backend_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[object, ...]] = []

    def fake(*arguments: object) -> FakeStream:
        opened.append(arguments)
        return FakeStream()

    monkeypatch.setattr(device, "Stream", fake)
    link = tmp_path / "cam"
    for target in ("/dev/null", "/dev/zero"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        open_device(str(link), live(link))
    assert [arguments[:2] for arguments in opened] == [("/dev/null", Backend.V4L2), ("/dev/zero", Backend.V4L2)]


def test_a_missing_device_is_missing() -> None:
    with pytest.raises(SourceError, match="there is no device /dev/video77") as caught:
        check_device("/dev/video77", "/dev/video77")
    assert caught.value.fault is SourceFault.MISSING


def test_a_forbidden_device_names_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SourceError, match="group video") as caught:
        check_device("/dev/video0", "/dev/video0")
    assert caught.value.fault is SourceFault.PERMISSION
