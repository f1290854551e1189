"""Addresses as two kinds of source: streams (RTSP, RTMP, SRT, UDP), and content of a web server, which may end."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from .redact import SAFE_IN_USERINFO, is_ambiguous, redact_url, split_userinfo
from .spec import SourceKind, SourceSpec, unreadable

if TYPE_CHECKING:
    from ..config import CameraConfig
    from .reader import Reader

_STREAMS = ("rtsp://", "rtsps://", "rtmp://", "rtmps://", "srt://", "udp://")
_WEB = ("http://", "https://")
_LISTENING = ("srt://", "udp://")
"""Schemes of streams that a camera may send to this machine. Their addresses may consist of a port only, as in
`udp://:5000` or `udp://@:5000`.
"""
_OPTIONAL = ("srt",)
"""Schemes of protocols that an FFmpeg may lack, as the one in pip's OpenCV does."""
_PORTS = {"rtsp": 554, "rtsps": 322, "rtmp": 1935, "rtmps": 443, "http": 80, "https": 443}
"""Default ports of the protocols over TCP."""
_LONE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_AMBIGUOUS = (
    "the address can be read in two ways: its user or password contains @ / ? or # as plain characters, or its path"
    " contains @. Percent-encode them: @ is %40, / is %2F, ? is %3F, # is %23 (and % is %25)"
)


@dataclass(frozen=True, slots=True)
class NetworkSpec(SourceSpec):
    """A stream at an address, with its scheme in small letters, which FFmpeg needs.

    Characters of the password that an address cannot hold are percent-encoded.
    """

    url: str

    @property
    def is_live(self) -> bool:
        """See `SourceSpec`. False for web addresses, since a web server may send a file."""
        return not self.url.startswith("http")

    def check(self) -> None:
        """See `SourceSpec`."""
        scheme = self.url.partition("://")[0]
        if scheme in _OPTIONAL:  # the others do not load OpenCV here
            from .ffmpeg_protocols import check_protocol

            check_protocol(scheme)

    @property
    def address(self) -> tuple[str, int] | None:
        """See `SourceSpec`. FFmpeg opens web addresses through the proxy of the environment, if it has one."""
        scheme, _, rest = split_userinfo(self.url)
        parts = urlsplit(scheme + rest)
        proxied = parts.scheme.startswith("http") and "http_proxy" in os.environ
        if parts.hostname is None or parts.scheme not in _PORTS or proxied:
            return None
        return parts.hostname, parts.port or _PORTS[parts.scheme]

    def load(self, config: "CameraConfig") -> "Callable[[], Reader]":
        """See `SourceSpec`."""
        from .video import open_stream

        self.check()
        if not self.url.startswith("http"):
            return lambda: open_stream(self.url, config)
        from .web_images import open_web

        return lambda: open_web(self.url, config)

    def __repr__(self) -> str:
        return f"NetworkSpec(url={redact_url(self.url)!r})"


def _parse(text: str, schemes: tuple[str, ...]) -> NetworkSpec | None:
    return NetworkSpec(_encoded(text)) if text.lower().startswith(schemes) else None


def _encoded(url: str) -> str:
    if is_ambiguous(url):
        raise unreadable(_AMBIGUOUS)
    scheme, userinfo, rest = split_userinfo(url)
    scheme = scheme.lower()  # FFmpeg compares schemes letter by letter
    try:
        parts = urlsplit(scheme + rest)
        host = parts.hostname or (parts.port is not None and scheme in _LISTENING)
        _ = parts.port
    except ValueError:
        host = None
    if not host:
        # The text in the host's place may be a password whose @ is missing: the message does not quote it.
        raise unreadable(f"the address has no valid host and port: expected {scheme}[user:password@]host[:port]/path")
    if userinfo is None:
        return scheme + rest
    return f"{scheme}{quote(_LONE_PERCENT.sub('%25', userinfo), safe=SAFE_IN_USERINFO)}@{rest}"


NETWORK = SourceKind(
    name="a network stream",
    forms=(
        "rtsp://HOST/PATH",
        "rtsp://USER:PASSWORD@HOST:554/PATH",
        "rtmp://HOST/APP",
        "srt://HOST:9000",
        "udp://@:5000",
    ),
    schemes=_STREAMS,
    parse=lambda text: _parse(text, _STREAMS),
)
HTTP = SourceKind(
    name="a stream, video, playlist or image on a web server",
    forms=("http://HOST/PATH", "https://USER:PASSWORD@HOST/clip.mp4", "http://HOST/snapshot.jpg"),
    schemes=_WEB,
    parse=lambda text: _parse(text, _WEB),
    ends=True,
)
