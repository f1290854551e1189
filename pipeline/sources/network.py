"""Network streams as a kind of source: RTSP cameras, and whatever FFmpeg reads over HTTP."""

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

_SCHEMES = ("rtsp://", "rtsps://", "http://", "https://")
_PORTS = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443}
_LONE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_AMBIGUOUS = (
    "the address can be read in two ways: its user or password contains @ / ? or # as plain characters, or its path"
    " contains @. Percent-encode them: @ is %40, / is %2F, ? is %3F, # is %23 (and % is %25)"
)


@dataclass(frozen=True, slots=True)
class NetworkSpec(SourceSpec):
    """A stream at an address; characters of the password that an address cannot hold are percent-encoded."""

    url: str

    @property
    def is_live(self) -> bool:
        """See `SourceSpec`. What a web server sends may be a file."""
        return self.url.lower().startswith("rtsp")

    @property
    def address(self) -> tuple[str, int] | None:
        """See `SourceSpec`. FFmpeg opens web addresses through the proxy of the environment, if it has one."""
        scheme, _, rest = split_userinfo(self.url)
        parts = urlsplit(scheme + rest)
        if parts.hostname is None or (parts.scheme.startswith("http") and "http_proxy" in os.environ):
            return None
        return parts.hostname, parts.port or _PORTS[parts.scheme]

    def load(self, config: "CameraConfig") -> "Callable[[], Reader]":
        """See `SourceSpec`."""
        from .video import open_stream

        return lambda: open_stream(self.url, config)

    def __repr__(self) -> str:
        return f"NetworkSpec(url={redact_url(self.url)!r})"


def _parse(text: str) -> NetworkSpec | None:
    return NetworkSpec(_encoded(text)) if text.lower().startswith(_SCHEMES) else None


def _encoded(url: str) -> str:
    if is_ambiguous(url):
        raise unreadable(_AMBIGUOUS)
    scheme, userinfo, rest = split_userinfo(url)
    try:
        parts = urlsplit(scheme + rest)
        host = parts.hostname
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
    forms=("rtsp://HOST/PATH", "rtsp://USER:PASSWORD@HOST:554/PATH", "http://HOST/PATH"),
    schemes=_SCHEMES,
    parse=_parse,
)
