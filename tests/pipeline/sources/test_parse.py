"""Every way to write a source is understood, and every wrong one is told apart."""

import pytest

from retinad.pipeline.errors import SourceError, SourceFault
from retinad.pipeline.sources.parse import DeviceSpec, NetworkSpec, PathSpec, SourceSpec, SyntheticSpec, parse_source


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", DeviceSpec("/dev/video0")),
        ("/dev/video2", DeviceSpec("/dev/video2")),
        ("/dev/v4l/by-id/usb-Cam_1-video-index0", DeviceSpec("/dev/v4l/by-id/usb-Cam_1-video-index0")),
        ("rtsp://h:8554/x", NetworkSpec("rtsp://h:8554/x")),
        ("RTSP://h/x", NetworkSpec("RTSP://h/x")),
        ("http://u:p@h/x?a=1", NetworkSpec("http://u:p@h/x?a=1")),
        ("rtsp://u:p/w#r?d%@h/x", NetworkSpec("rtsp://u:p%2Fw%23r%3Fd%25@h/x")),
        ("rtsp://u:p@w@h/x", NetworkSpec("rtsp://u:p%40w@h/x")),
        ("rtsp://u:p@h/a@b", NetworkSpec("rtsp://u:p@h/a@b")),
        ("rtsp://u:p%40ss@h/x", NetworkSpec("rtsp://u:p%40ss@h/x")),
        ("clip_%d.mp4", PathSpec("clip_%d.mp4")),
        ("cam 1 #2.mp4", PathSpec("cam 1 #2.mp4")),
        ("file:///data/a%20b.mp4", PathSpec("/data/a b.mp4")),
        ("file://localhost/data/a.mp4", PathSpec("/data/a.mp4")),
        ("frames/*.png", PathSpec("frames/*.png")),
        ("synthetic:", SyntheticSpec()),
        ("synthetic:?width=64&fps=5.5&frames=3", SyntheticSpec(width=64, fps=5.5, frames=3)),
    ],
)
def test_sources_are_read(text: str, expected: SourceSpec) -> None:
    assert parse_source(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("ftp://h/x", "scheme ftp:// is not known"),
        ("file://host/x", "names a file on host"),
        ("rtsp:///x", "no valid host"),
        ("rtsp://h:99999/x", "no valid host and port"),
        ("synthetic:?wdith=64", "no option 'wdith'"),
        ("synthetic:?width=big", "width takes a number"),
        ("synthetic:?width=0", "width is 8 to 8192"),
        ("synthetic:?fps=nan", "fps is"),
        ("synthetic:64x64", "is followed by '64x64'"),
    ],
)
def test_wrong_sources_say_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        parse_source(text)
    assert caught.value.fault is SourceFault.UNREADABLE


def test_errors_and_values_hold_no_password() -> None:
    assert "s3cret" not in repr(parse_source("rtsp://u:s3cret@h/x"))
    with pytest.raises(SourceError) as caught:
        parse_source("rtsp://u:s3cret@h:99999/x")
    assert "s3cret" not in str(caught.value)
