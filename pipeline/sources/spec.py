"""Reads what the config calls a source into a value that says what it is. Looks at the text only."""

import re
from dataclasses import dataclass
from typing import get_type_hints
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from ..errors import SourceError, SourceFault
from .redact import SAFE_IN_USERINFO, is_ambiguous, mask, redact_url, split_userinfo

NETWORK_SCHEMES = ("rtsp", "rtsps", "http", "https")
_LONE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_AMBIGUOUS = (
    "the address can be read in two ways: @ / ? # stand as they are in its user or password, or @ in its path."
    " Write them percent-encoded: @ is %40, / is %2F, ? is %3F, # is %23 (and % is %25)"
)


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """A stream at an address; characters of the password that an address cannot hold are percent-encoded."""

    url: str

    def __repr__(self) -> str:
        return f"NetworkSpec(url={redact_url(self.url)!r})"


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A V4L2 device by its path, which may be a link (`/dev/v4l/by-id/...`)."""

    path: str


@dataclass(frozen=True, slots=True)
class PathSpec:
    """A path or glob: a video file, a picture, a folder of pictures, or a device; the file system tells which."""

    path: str


@dataclass(frozen=True, slots=True)
class SyntheticSpec:
    """The built-in scene.

    Attributes:
        width: pixels.
        height: pixels.
        fps: frames a second in live mode.
        seed: of the texture and the camera's path.
        frames: frames until it ends, or 0 for no end.
        period: frames until the camera is back where it began.
    """

    width: int = 640
    height: int = 480
    fps: float = 30.0
    seed: int = 0
    frames: int = 0
    period: int = 300


SourceSpec = NetworkSpec | DeviceSpec | PathSpec | SyntheticSpec


def parse_source(text: str) -> SourceSpec:
    """Read a source.

    Args:
        text: device index or path, `rtsp://`/`http://` address, `file:///` address, path, glob, or `synthetic:`.

    Raises:
        SourceError: `UNREADABLE`, with what was expected. The message holds no secret.
    """
    if not text.strip():
        raise _unreadable("the source is empty: give a device, an address, a path or synthetic:")
    if text.isascii() and text.isdigit():
        return DeviceSpec(f"/dev/video{int(text)}")
    if text.startswith("/dev/"):
        return DeviceSpec(text)
    if text == "synthetic" or text.startswith("synthetic:"):
        try:
            return _synthetic(text.removeprefix("synthetic").removeprefix(":"))
        except ValueError as exc:
            raise _unreadable(mask(f"synthetic: {exc}", text)) from None  # an address may stand behind it
    scheme = _SCHEME.match(text)
    return _address(text, scheme[1].lower()) if scheme else PathSpec(text)


def _address(text: str, scheme: str) -> SourceSpec:
    if scheme == "file":
        host, slash, path = text.partition("://")[2].partition("/")
        if host not in ("", "localhost") or not slash:
            raise _unreadable("the address names a file on another host: write file:///path or the plain path")
        return PathSpec(unquote(slash + path))
    if scheme not in NETWORK_SCHEMES:
        known = ", ".join(f"{name}://" for name in (*NETWORK_SCHEMES, "file"))
        raise _unreadable(f"scheme {scheme}:// is not known: {known} and synthetic: are")
    return NetworkSpec(_encoded(text))


def _encoded(url: str) -> str:
    if is_ambiguous(url):
        raise _unreadable(_AMBIGUOUS)
    scheme, userinfo, rest = split_userinfo(url)
    try:
        parts = urlsplit(scheme + rest)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        host = None
    if not host:
        # What stands in the host's place may be a password whose @ is missing.
        raise _unreadable(f"the address has no valid host and port: write {scheme}[user:password@]host[:port]/path")
    if userinfo is None:
        return scheme + rest
    return f"{scheme}{quote(_LONE_PERCENT.sub('%25', userinfo), safe=SAFE_IN_USERINFO)}@{rest}"


def _synthetic(text: str) -> SyntheticSpec:
    kinds = get_type_hints(SyntheticSpec)
    given: dict[str, int | float] = {}
    if text and not text.startswith("?"):
        raise ValueError(f"is followed by {text!r}: write synthetic:?width=640&height=480&fps=30&seed=0")
    for key, value in parse_qsl(text[1:], keep_blank_values=True, separator="&"):
        if key not in kinds:
            raise ValueError(f"has no option {key!r}: {', '.join(kinds)} are known")
        given[key] = _number(key, value, kinds[key])
    spec = SyntheticSpec(**given)  # type: ignore[arg-type]  # every value was read by its field's type
    _check_ranges(spec)
    return spec


def _number(key: str, value: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{key} takes a number, got {value!r}") from None


def _check_ranges(spec: SyntheticSpec) -> None:
    for name, low, high in (
        ("width", 8, 8192),
        ("height", 8, 8192),
        ("fps", 0.01, 10000),
        ("seed", 0, 2**32 - 1),
        ("frames", 0, 2**62),
        ("period", 1, 2**31),
    ):
        value = getattr(spec, name)
        if not low <= value <= high:
            raise ValueError(f"{name} is {low} to {high}, got {value}")


def _unreadable(message: str) -> SourceError:
    return SourceError(SourceFault.UNREADABLE, message)
