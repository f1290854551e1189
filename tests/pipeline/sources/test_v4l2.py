"""Devices are configured in the right order, described truthfully, and found again through their links."""

import errno
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import pytest

from retinad.pipeline.errors import SourceError, SourceFault
from retinad.pipeline.frames import Pixels
from retinad.pipeline.sources import v4l2
from retinad.pipeline.sources.opencv import CaptureBackend, Property, VideoCapture, fourcc_number
from retinad.pipeline.sources.v4l2 import DeviceReader, check_device, open_device

from ..capture.rig import Changes, live


class FakeCapture(VideoCapture):
    """A driver that accepts every setting, and ignores it."""

    def __init__(self, **got: float) -> None:
        self.requested: list[tuple[Property, float]] = []
        self.got = {Property[name]: value for name, value in got.items()}
        self.frames = 1

    def set(self, prop: Property, value: float) -> bool:
        self.requested.append((prop, value))
        return True

    def get(self, prop: Property) -> float | None:
        return self.got.get(prop)

    def grab(self) -> bool:
        self.frames -= 1
        return self.frames >= 0

    def retrieve(self, out: Pixels | None) -> Pixels | None:
        return None

    def close(self) -> None:
        pass


def reader(capture: FakeCapture, path: str = "/dev/null", **changes: Unpack[Changes]) -> DeviceReader:
    return DeviceReader(path, live(path, **changes), capture)


def test_format_comes_before_size_before_rate() -> None:
    capture = FakeCapture()
    reader(capture, fourcc="MJPG", size=(1280, 720), fps=30.0)
    assert [prop for prop, _ in capture.requested] == [Property.FOURCC, Property.WIDTH, Property.HEIGHT, Property.FPS]


def test_nothing_is_requested_that_was_not_configured() -> None:
    capture = FakeCapture()
    assert reader(capture).info.notes == ()
    assert capture.requested == []


def test_differences_are_noted() -> None:
    capture = FakeCapture(FOURCC=fourcc_number("YUYV"), WIDTH=640, HEIGHT=480, FPS=10)
    info = reader(capture, fourcc="MJPG", size=(1280, 720), fps=30.0).info
    assert info.notes == (
        "requested MJPG, got YUYV",
        "requested 1280x720, got 640x480",
        "requested 30 frames/s, got 10",
    )
    assert (info.width, info.height, info.fps, info.codec, info.live) == (640, 480, 10, "YUYV", True)


def test_agreement_is_not_noted() -> None:
    capture = FakeCapture(FOURCC=fourcc_number("MJPG"), WIDTH=1280, HEIGHT=720, FPS=30)
    assert reader(capture, fourcc="MJPG", size=(1280, 720), fps=30.0).info.notes == ()


def test_a_device_number_has_a_warning() -> None:
    (note,) = reader(FakeCapture(), "/dev/video3").info.notes
    assert "/dev/v4l/by-id" in note


@pytest.mark.parametrize(
    ("age_s", "is_believed"), [(0.04, True), (3.0, True), (-0.5, False), (60.0, False), (-1.7e9, False), (None, False)]
)
def test_the_time_of_a_frame_is_the_drivers_where_it_uses_the_monotonic_clock(
    age_s: float | None, is_believed: bool
) -> None:
    driver_s = None if age_s is None else time.monotonic() - age_s
    capture = FakeCapture() if driver_s is None else FakeCapture(POSITION_MS=driver_s * 1000)
    grabbed = reader(capture).grab()
    assert grabbed is not None
    assert (grabbed.monotonic_ns is not None) == is_believed
    if is_believed and driver_s is not None:
        assert grabbed.monotonic_ns == pytest.approx(driver_s * 1e9, abs=1000)


@pytest.mark.parametrize(("path", "fault"), [("/dev/null", SourceFault.STALLED), ("/dev/gone", SourceFault.MISSING)])
def test_a_device_that_stops_says_whether_it_is_still_there(path: str, fault: SourceFault) -> None:
    opened = reader(FakeCapture(), path)
    assert opened.grab() is not None
    with pytest.raises(SourceError) as caught:
        opened.grab()
    assert caught.value.fault is fault


def test_links_are_resolved_each_time_and_the_backend_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[object, ...]] = []

    def fake(*arguments: object) -> FakeCapture:
        opened.append(arguments)
        return FakeCapture()

    monkeypatch.setattr(v4l2, "VideoCapture", fake)
    link = tmp_path / "cam"
    for target in ("/dev/null", "/dev/zero"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        open_device(str(link), live(link))
    assert [arguments[:2] for arguments in opened] == [
        ("/dev/null", CaptureBackend.V4L2),
        ("/dev/zero", CaptureBackend.V4L2),
    ]


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


UVC, META, M2M, MPLANE, RADIO = 0x04200001, 0x04A00000, 0x04004000, 0x04001000, 0x00050000


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the machine these nodes, each with a card, a bus and flags; None is a node that is not V4L2."""

    def give(links: dict[str, str], **devices: tuple[str, str, int] | None) -> None:
        paths = {f"/dev/{name}": device for name, device in devices.items()}
        opened: dict[int, str] = {}

        def fake_open(path: str, flags: int) -> int:
            if path not in paths:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")
            opened[1000 + len(opened)] = path
            return 999 + len(opened)

        def fake_ioctl(descriptor: int, request: int, data: bytes) -> bytes:
            device = paths[opened[descriptor]]
            assert (request, len(data)) == (0x80685600, 104)
            if device is None:
                raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")
            card, bus, flags = device
            names = (name.encode() for name in ("uvcvideo", card, bus))
            return struct.pack("16s32s32sIII12x", *names, 0x060000, flags | 0x84A00001, flags)

        monkeypatch.setattr(os, "open", fake_open)
        monkeypatch.setattr(os, "close", lambda descriptor: None)
        monkeypatch.setattr("fcntl.ioctl", fake_ioctl)
        monkeypatch.setattr("glob.glob", lambda pattern: list(links if "by-id" in pattern else paths))
        monkeypatch.setattr(os.path, "realpath", lambda path: links.get(path, path))

    return give


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (META, "delivers metadata only"),
        (M2M, "converts images in memory"),
        (RADIO, "is a radio"),
        (0x2, "shows images"),
        (0x04000000, "delivers no images"),
    ],
)
def test_a_node_that_is_no_camera_says_what_it_is(nodes: Callable[..., None], flags: int, words: str) -> None:
    nodes({}, video1=("HD Cam", "usb-1", flags))
    with pytest.raises(SourceError, match=words) as caught:
        check_device("/dev/video1", "/dev/video1")
    assert caught.value.fault is SourceFault.UNREADABLE
    assert "HD Cam" in str(caught.value)
    assert "no other node of this device" in str(caught.value)


def test_the_right_sibling_is_named(nodes: Callable[..., None]) -> None:
    devices = {
        "video0": ("HD Cam", "usb-1", UVC),
        "video1": ("HD Cam", "usb-1", META),
        "video2": ("HD Cam", "usb-2", UVC),
        "video3": ("HD Cam", "usb-2", META),
        "video4": ("Other", "usb-1", UVC),
        "video5": None,
    }
    nodes({"/dev/v4l/by-id/cam-index0": "/dev/video2"}, **devices)
    for path, right in (("/dev/video1", "/dev/video0"), ("/dev/video3", "/dev/v4l/by-id/cam-index0")):
        with pytest.raises(SourceError, match=f"delivers metadata only; use {right}$"):
            check_device(path, path)


@pytest.mark.parametrize("device", [("HD Cam", "usb-1", UVC), ("CSI", "platform", MPLANE), None])
def test_a_node_that_may_be_a_camera_is_opened(nodes: Callable[..., None], device: tuple[str, str, int] | None) -> None:
    """OpenCV finds out about one that cannot be asked."""
    nodes({}, video0=device)
    check_device("/dev/video0", "/dev/video0")
