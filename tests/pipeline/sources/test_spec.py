"""Every way to write a source is understood, and every wrong one is told apart."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinad.pipeline.errors import SourceError, SourceFault
from retinad.pipeline.sources.spec import DeviceSpec, NetworkSpec, PathSpec, SourceSpec, SyntheticSpec, parse_source


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", DeviceSpec("/dev/video0")),
        ("/dev/video2", DeviceSpec("/dev/video2")),
        ("/dev/v4l/by-id/usb-Cam_1-video-index0", DeviceSpec("/dev/v4l/by-id/usb-Cam_1-video-index0")),
        ("rtsp://h:8554/x", NetworkSpec("rtsp://h:8554/x")),
        ("RTSP://h/x", NetworkSpec("RTSP://h/x")),
        ("http://u:p@h/x?a=1", NetworkSpec("http://u:p@h/x?a=1")),
        ("rtsp://u:p%@h/x", NetworkSpec("rtsp://u:p%25@h/x")),
        ("rtsp://u:p[w]:' é@h/x", NetworkSpec("rtsp://u:p%5Bw%5D:%27%20%C3%A9@h/x")),
        ("rtsp://u:p%40ss%2f@[::1]:9/x", NetworkSpec("rtsp://u:p%40ss%2f@[::1]:9/x")),
        ("rtsp://h/user@cam", NetworkSpec("rtsp://h/user@cam")),
        ("rtsp://h.lan:554/user@cam/x", NetworkSpec("rtsp://h.lan:554/user@cam/x")),
        ("rtsp://[fe80::1%25eth0]:554/a@b", NetworkSpec("rtsp://[fe80::1%25eth0]:554/a@b")),
        ("http://localhost:80/a@b@c", NetworkSpec("http://localhost:80/a@b@c")),
        ("http://192.0.2.7:80/a@b.mjpg", NetworkSpec("http://192.0.2.7:80/a@b.mjpg")),
        ("http://h?mail=a@b", NetworkSpec("http://h?mail=a@b")),
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
        ("file://host/x", "names a file on another host"),
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


@pytest.mark.parametrize(
    "userinfo",
    [
        "u:a@Q7Q7",
        "u:a@Q7Q7/b",
        "u:a/Q7Q7",
        "u:1/Q7Q7",
        "u:a?Q7Q7",
        "u:a#Q7Q7@b",
        "Q7@Q7:a",
        "u/Q7Q7:a",
        "/u:Q7Q7",
        "u@/Q7",
    ],
)
@pytest.mark.parametrize("host", ["192.0.2.7", "[2001:db8::1]:554", "h"])
def test_a_password_of_which_a_piece_would_be_taken_for_the_host_is_refused(userinfo: str, host: str) -> None:
    with pytest.raises(SourceError, match="@ is %40, / is %2F") as caught:
        parse_source(f"rtsp://{userinfo}@{host}/stream")
    assert "Q7" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["rtsp://u:p@h/a@b", "http://u:p@h/x?mail=a@b", "rtsp://h:12/a@b", "rtsp://to/ken@192.0.2.7/"]
)
def test_a_path_that_might_be_the_rest_of_a_password_is_refused(url: str) -> None:
    with pytest.raises(SourceError, match="in two ways"):
        parse_source(url)


_PASSWORDS = st.text("ab19@/:?#[]%&. '\"\\é", max_size=12)


@settings(max_examples=200, deadline=None)
@given(
    user=st.text("ab19@/:?#[]% é", max_size=6), password=_PASSWORDS, host=st.sampled_from(["192.0.2.7", "cam", "[::1]"])
)
def test_ffmpeg_finds_the_host_of_every_address_that_is_not_refused(user: str, password: str, host: str) -> None:
    """So that no piece of a password is asked of a name server."""
    url = f"rtsp://{user}:{password}@{host}/stream"
    if set("@/?#") & set(user + password):
        with pytest.raises(SourceError, match="in two ways"):
            parse_source(url)
        return
    spec = parse_source(url)
    assert isinstance(spec, NetworkSpec)
    assert _ffmpeg_host(spec.url) == host.strip("[]")


def _ffmpeg_host(url: str) -> str:
    # As in av_url_split (libavformat/utils.c).
    authority = re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]
    in_brackets = re.match(r"\[([^]]*)\]", authority)
    return in_brackets[1] if in_brackets else authority.partition(":")[0]


def test_errors_and_values_hold_no_password() -> None:
    assert "s3cret" not in repr(parse_source("rtsp://u:s3cret@h/x"))
    wrong = (
        "rtsp://u:s3cret@h:99999/x",
        "rtsp://u:s3cret",
        "rtsp://u:s3cret/h",
        "file://u:s@s3cret@h/x",
        "foo://s3cret@h",
    )
    for text in (*wrong, "synthetic:rtsp://u:s3cret@h", "synthetic:?a=u:s3cret@h"):
        with pytest.raises(SourceError) as caught:
            parse_source(text)
        assert "s3cret" not in str(caught.value)
