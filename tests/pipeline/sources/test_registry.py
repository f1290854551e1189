"""Every way to write a source is understood, every wrong one has its own error, and all of it follows from `KINDS`."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retinad.daemon
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.errors import SourceError, SourceFault
from retinad.pipeline.sources import registry
from retinad.pipeline.sources.device import DeviceSpec
from retinad.pipeline.sources.gstreamer import GStreamerSpec
from retinad.pipeline.sources.network import NetworkSpec
from retinad.pipeline.sources.paths import PathSpec
from retinad.pipeline.sources.reader import Reader
from retinad.pipeline.sources.registry import KINDS, known_schemes, load_reader, parse_source, suggest_scheme
from retinad.pipeline.sources.scene import SyntheticReader
from retinad.pipeline.sources.spec import SourceKind, SourceSpec
from retinad.pipeline.sources.synthetic import SyntheticSpec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", DeviceSpec("/dev/video0")),
        ("/dev/video2", DeviceSpec("/dev/video2")),
        ("/dev/v4l/by-id/usb-Cam_1-video-index0", DeviceSpec("/dev/v4l/by-id/usb-Cam_1-video-index0")),
        ("rtsp://h:8554/x", NetworkSpec("rtsp://h:8554/x")),
        ("RTSP://h/X", NetworkSpec("rtsp://h/X")),
        ("Http://U:P@H/X", NetworkSpec("http://U:P@H/X")),
        ("hTTpS://h/x", NetworkSpec("https://h/x")),
        ("Synthetic:?width=64", SyntheticSpec(width=64)),
        ("SYNTHETIC", SyntheticSpec()),
        ("FILE:///data/a.mp4", PathSpec("/data/a.mp4")),
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
        ("RTMP://h/app/Key", NetworkSpec("rtmp://h/app/Key")),
        ("rtmps://u:p@h/app", NetworkSpec("rtmps://u:p@h/app")),
        ("srt://h:9000?streamid=x", NetworkSpec("srt://h:9000?streamid=x")),
        ("srt://:9000?mode=listener", NetworkSpec("srt://:9000?mode=listener")),
        ("udp://239.0.0.1:5000", NetworkSpec("udp://239.0.0.1:5000")),
        ("udp://@239.0.0.1:5000", NetworkSpec("udp://@239.0.0.1:5000")),
        ("udp://@:5000", NetworkSpec("udp://@:5000")),
        ("udp://:5000?fifo_size=1", NetworkSpec("udp://:5000?fifo_size=1")),
        ("GStreamer: videotestsrc ! appsink drop=1 ", GStreamerSpec("videotestsrc ! appsink drop=1")),
        ("clip_%d.mp4", PathSpec("clip_%d.mp4")),
        ("cam 1 #2.mp4", PathSpec("cam 1 #2.mp4")),
        ("file:///data/a%20b.mp4", PathSpec("/data/a b.mp4")),
        ("file://localhost/data/a.mp4", PathSpec("/data/a.mp4")),
        ("frames/*.png", PathSpec("frames/*.png")),
        ("synthetic:", SyntheticSpec()),
        ("synthetic:?width=64&fps=5.5&frames=3", SyntheticSpec(width=64, fps=5.5, frames=3)),
    ],
)
def test_sources_are_parsed(text: str, expected: SourceSpec) -> None:
    assert parse_source(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("ftp://h/x", "scheme ftp:// is not known"),
        ("file://host/x", "names a file on another host"),
        ("rtsp:///x", "no valid host"),
        ("rtsp://h:99999/x", "no valid host and port"),
        ("udp://", "no valid host"),
        ("rtmp://:1935/x", "no valid host"),
        ("gstreamer:", "appsink is the last"),
        ("gstreamer:videotestsrc", "appsink is the last"),
        ("gstreamer:videotestsrc ! ! appsink", "appsink is the last"),
        ("gstreamer:appsink ! videotestsrc", "appsink is the last"),
        ("synthetic:?wdith=64", "no option 'wdith'"),
        ("synthetic:?width=big", "width must be a number"),
        ("synthetic:?width=0", "width must be 8 to 8192"),
        ("synthetic:?fps=nan", "fps must be"),
        ("synthetic:64x64", "is followed by '64x64'"),
    ],
)
def test_a_wrong_source_has_a_message_that_says_why(text: str, words: str) -> None:
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
    """Otherwise a piece of a password would be sent to a name server."""
    url = f"rtsp://{user}:{password}@{host}/stream"
    if set("@/?#") & set(user + password):
        with pytest.raises(SourceError, match=r"in two ways|no valid host"):  # the latter for `[1]?`, no IPv6 address
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


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_documented_form_is_parsed_by_its_own_kind(kind: SourceKind) -> None:
    for form in kind.forms:
        assert parse_source(form) == kind.parse(form) is not None


@dataclass(frozen=True, slots=True)
class TestCardSpec(SourceSpec):
    """A kind of source that the service does not have."""

    __test__ = False

    def load(self, config: CameraConfig) -> Callable[[], Reader]:
        return lambda: SyntheticReader(SyntheticSpec(width=64, height=48).scene(), fps=1.0, frames=1)


def test_a_new_kind_needs_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may also take a part of another kind's texts, as `synthetic:room` would of `synthetic:`."""
    kind = SourceKind(
        name="a test card",
        forms=("card://", "synthetic:card"),
        parse=lambda text: TestCardSpec() if text in ("card://", "synthetic:card") else None,
        schemes=("card://",),
    )
    with pytest.raises(SourceError, match="scheme card:// is not known"):
        parse_source("card://")
    monkeypatch.setattr(registry, "KINDS", (kind, *KINDS))
    assert parse_source("card://") == parse_source("synthetic:card") == TestCardSpec()
    assert parse_source("synthetic:") == SyntheticSpec()
    assert load_reader(CameraConfig("cam", "card://"))().info.width == 64
    assert suggest_scheme("card:/x") == "card://"
    with pytest.raises(SourceError, match="known: card://, synthetic:, rtsp://"):
        parse_source("ftp://h/x")
    with pytest.raises(SourceError, match=r"a test card \(card://\)"):
        parse_source("")


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("rtsp//h/x", "rtsp://"),
        ("RTSP:/h", "rtsp://"),
        ("https/h", "https://"),
        ("sythetic:", "synthetic:"),
        ("synthetc:?fps=5", "synthetic:"),
        ("synthetic", "synthetic:"),
        ("rstp:/h/x", "rtsp://"),
        ("192.0.2.1:554/x", "rtsp://"),
        ("192.0.2.1", "rtsp://"),
        ("u:pw@192.0.2.1/x", "rtsp://"),
        ("[fd00::1]/x", "rtsp://"),
        ("camera.lan:554/x", "rtsp://"),
        ("camera:8080/video", "http://"),
        ("192.0.2.1:80/x.mjpg", "http://"),
        ("file/a.png", None),
        ("a.mp4", None),
        ("clips:2/a.mp4", None),
        ("1.2.3/a.mp4", None),
        ("/data/192.0.2.1/x.mp4", None),
        ("C:/clips/a.mp4", None),
    ],
)
def test_a_scheme_is_suggested_for_a_mistyped_address(text: str, scheme: str | None) -> None:
    assert suggest_scheme(text) == scheme


def test_the_error_of_a_mistyped_address_names_the_scheme() -> None:
    with pytest.raises(SourceError, match=r"no file or folder 192\.0\.2\.1:554/x \(an address begins with rtsp://\)"):
        load_reader(CameraConfig("cam", "192.0.2.1:554/x"))


def test_a_path_that_does_not_exist_is_found_without_opening_it() -> None:
    with pytest.raises(SourceError, match="no file or folder /nothere"):
        parse_source("/nothere").check()
    for text in ("0", "rtsp://h/x", "synthetic:", "/dev/null"):
        parse_source(text).check()


def test_what_the_text_says_of_a_source_is_known_without_opening_it() -> None:
    assert [parse_source(text).is_live for text in ("0", "rtsp://h", "RTSPS://h", "http://h", "a.mp4")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert all(parse_source(text).is_live for text in ("rtmp://h/x", "srt://h:1", "udp://:1", "gstreamer:a ! appsink"))
    assert parse_source("synthetic:?width=64&height=48").frame_size == (64, 48)
    assert parse_source("a.mp4").frame_size is None


def test_the_default_config_names_every_scheme() -> None:
    text = Path(retinad.daemon.__path__[0], "config.toml").read_text()
    for scheme in known_schemes():
        assert scheme.rstrip(":/") in text


def test_parsing_needs_neither_numpy_nor_opencv() -> None:
    """The command line builds its help from the registry."""
    code = "import sys, retinad.pipeline.sources.registry; print(*{m.partition('.')[0] for m in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"numpy", "cv2", "msgspec"} & set(loaded)
