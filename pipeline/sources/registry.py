"""The registry of source kinds. Parsing, opening, help and error texts all follow from `KINDS`.

A new kind of source is one module with a `SourceSpec` and a `SourceKind`, and one entry in `KINDS`.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from .device import DEVICE
from .network import NETWORK
from .paths import PATH
from .redact import printable
from .spec import SourceKind, SourceSpec, unreadable
from .synthetic import SYNTHETIC

if TYPE_CHECKING:
    from ..config import CameraConfig
    from .reader import Reader

KINDS: tuple[SourceKind, ...] = (DEVICE, SYNTHETIC, NETWORK, PATH)
"""All kinds, in the order in which they parse a text. `PATH` is last: it accepts any text without a scheme."""

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
        raise unreadable("the address holds bytes that are no UTF-8: percent-encode them (%E9 is one)")
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
    return parse_source(config.source).load(config)


def known_schemes() -> tuple[str, ...]:
    """The schemes of all kinds: `rtsp://`, ..., `synthetic:`."""
    return tuple(scheme for kind in KINDS for scheme in kind.schemes)


def describe_kinds(kinds: tuple[SourceKind, ...]) -> str:
    """List kinds with an example of each, for a sentence: `a (1), b (2) or c (3)`."""
    *most, last = (f"{kind.name} ({kind.forms[0]})" for kind in kinds)
    return f"{', '.join(most)} or {last}" if most else last


def suggest_scheme(text: str) -> str | None:
    """The scheme that a mistyped address probably means, such as `rtsp://` for `rtsp//host` or `RTSP:/host`."""
    schemes = [scheme for kind in KINDS if kind is not PATH for scheme in kind.schemes if scheme.endswith("://")]
    names = "|".join(re.escape(scheme.removesuffix("://")) for scheme in schemes)
    found = re.match(rf"({names})[:/]", text, re.IGNORECASE)
    return f"{found[1].lower()}://" if found else None
