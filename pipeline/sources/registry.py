"""The registry of source kinds. Parsing, opening, help and error texts all follow from `KINDS`.

A new kind of source is one module with a `SourceSpec` and a `SourceKind`, and one entry in `KINDS`.
"""

import difflib
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import SourceError
from .device import DEVICE
from .gstreamer import GSTREAMER
from .network import HTTP, NETWORK
from .paths import PATH
from .redact import printable
from .spec import SourceKind, SourceSpec, unreadable
from .synthetic import SYNTHETIC

if TYPE_CHECKING:
    from ..config import CameraConfig
    from .reader import Reader

KINDS: tuple[SourceKind, ...] = (DEVICE, SYNTHETIC, NETWORK, HTTP, GSTREAMER, PATH)
"""All kinds, in the order in which they parse a text. `PATH` is last: it accepts any text without a scheme."""

_HOST = re.compile(
    r"(?:[^/@\s]+@)?(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?=:\d{2}))"
    r"(?::(?P<port>\d{2,5}))?(?:/|$)"
)
"""Matches the beginning of an address without a scheme: an IP address, or a name with a port."""
_WEB_PORTS = frozenset({"80", "443", "8000", "8080", "8081"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def parse_source(text: str) -> SourceSpec:
    """Parse a source, without looking at files or devices.

    Args:
        text: the source as the config has it, in one of the forms that `KINDS` lists.

    Raises:
        SourceError: `UNREADABLE`; the message says what was expected, and holds no secret.
    """
    if not text.strip():
        raise unreadable(f"the source is empty: expected {describe_kinds(KINDS)}")
    if "://" in text and printable(text) != text and not text.lower().startswith("file://"):
        raise unreadable("the address contains bytes that are not UTF-8: percent-encode them (%E9 is one)")
    for kind in KINDS:
        if (spec := kind.parse(text)) is not None:
            return spec
    scheme = _SCHEME.match(text)
    unknown = f"scheme {scheme[0].lower()} is not known" if scheme else "the source has no known form"
    raise unreadable(f"{unknown} (known: {', '.join(known_schemes())})")


def load_reader(config: "CameraConfig") -> "Callable[[], Reader]":
    """Import what a camera's source needs, and return a function that opens it, any number of times.

    Raises:
        SourceError: the source cannot be read as written. The returned function raises it if the source cannot be
            opened.
    """
    try:
        return parse_source(config.source).load(config)
    except SourceError as exc:
        raise SourceError(exc.fault, f"{exc}{scheme_hint(config.source)}") from exc


def known_schemes() -> tuple[str, ...]:
    """The schemes of all kinds: `rtsp://`, ..., `synthetic:`."""
    return tuple(scheme for kind in KINDS for scheme in kind.schemes)


def describe_kinds(kinds: tuple[SourceKind, ...]) -> str:
    """List kinds with an example of each, for a sentence: `a (1), b (2) or c (3)`."""
    *most, last = (f"{kind.name} ({kind.forms[0]})" for kind in kinds)
    return f"{', '.join(most)} or {last}" if most else last


def scheme_hint(text: str) -> str:
    """A hint for an error about a path that may be a mistyped address; otherwise an empty string."""
    scheme = suggest_scheme(text)
    return f" (an address begins with {scheme})" if scheme else ""


def suggest_scheme(text: str) -> str | None:
    """The scheme that a mistyped address probably means, such as `rtsp://` for `rtsp//host` or `192.0.2.1:554/x`."""
    names = {scheme.rstrip(":/"): scheme for kind in KINDS if kind is not PATH for scheme in kind.schemes}
    addresses = {name: scheme for name, scheme in names.items() if scheme.endswith("://")}
    word = re.match(r"([A-Za-z]+)(:|/|$)", text)
    if word is not None:
        name, after = word[1].lower(), word[2]
        if name in (names if after == "" else addresses):
            return names[name]
        if after == ":" and (near := difflib.get_close_matches(name, names, n=1, cutoff=0.75)):
            return names[near[0]]
    host = _HOST.match(text)
    if host is None or os.path.lexists(text):
        return None
    return "http://" if host["port"] in _WEB_PORTS else "rtsp://"
