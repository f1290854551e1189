"""Masks secrets in text for people: camera addresses contain passwords, and libraries quote addresses."""

import base64
import re
from urllib.parse import quote, unquote

MASK = "***"
SAFE_IN_USERINFO = ":%!$&()*+,;=~"
"""Characters that need no encoding in user information, including the percent sign of encoded characters."""
SHORTEST = 4
"""Minimum length of a secret that is masked wherever it occurs. A shorter one is part of many words, and is masked only
in the position of a password: masking every `p` would leave little of `rtsp`, and give the password away."""
_SECRET_KEYS = r"pass\w*|pwd|streamid|\w*token|\w*auth|\w*secret|sig|signature|\w*key|credentials?"
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Matches bytes of a file name that are not UTF-8, as Python represents them."""
_QUERY = re.compile(rf"([?&;](?:{_SECRET_KEYS})=)([^&\s\"'<>]*)", re.IGNORECASE)
_PROPERTY = re.compile(r"[\w-]*(?:pw|pass\w*|key|token|secret)\s*=\s*(?:\"([^\"]*)\"|([^\s!\"]+))", re.IGNORECASE)
"""Matches secret properties of an element of a GStreamer pipeline, such as `user-pw=...`."""
PLACEHOLDER = "USER:PASSWORD@HOST/PATH"
"""A placeholder for login, host and path of an address, as error messages show it."""
_ABSTRACT_SOCKET = r"ipc://@[^\s\"'<>@]*(?:[\s\"'<>]|$)"
_USERINFO = re.compile(rf"(\b(?!{_ABSTRACT_SOCKET})\w[\w+.-]*://)(?!{PLACEHOLDER}(?![^\s\"'<>]))[^\s\"'<>]*@")
_SEPARATOR = re.compile(r"[@:/?#\[\]]")
_IPV6 = r"\[[0-9A-Fa-f:.]+(?:%\w+)?\]"
_CLEARLY_HOST = re.compile(rf"(?:{_IPV6}|localhost|[^@:\[\]]+\.[^@:\[\]]+)(?::\d*)?")
_IP_ADDRESS = re.compile(rf"(?:{_IPV6}|\d+\.\d+\.\d+\.\d+)(?=[:/?#]|$)")


def split_userinfo(url: str) -> tuple[str, str | None, str]:
    """Split an address into `scheme://`, user information (as written, or None) and the rest.

    Follows the standard and FFmpeg: user information ends at the last `@` before the first `/`, `?` or `#`.
    """
    scheme, _, body = url.partition("://")
    userinfo, at, _ = _authority(body).rpartition("@")
    return f"{scheme}://", userinfo if at else None, body[len(userinfo) + len(at) :]


def is_ambiguous(url: str) -> bool:
    """Whether the user information of an address might end elsewhere than `split_userinfo` says.

    That is the case with two `@` before the first `/`, `?` or `#`, and with an `@` after it, unless everything before
    that `@` looks like a host and the beginning of a path. Otherwise a piece of an unencoded password would be taken
    for the host.
    """
    body = url.partition("://")[2]
    authority = _authority(body)
    if "@" not in body[len(authority) :]:
        return authority.count("@") > 1
    before, _, after = body.rpartition("@")
    if _IP_ADDRESS.match(after):  # more likely the camera's address than the rest of a path
        return True
    # `admin:12/34@host` and `ad/min:1234@host` are more likely a user and a password than a host, a port and a path.
    return not _CLEARLY_HOST.fullmatch(authority) and (not authority or "@" in authority or ":" in before)


def _authority(body: str) -> str:
    return re.split(r"[/?#]", body, maxsplit=1)[0]


def printable(text: str) -> str:
    """A text that every output accepts: bytes of a file name that are not UTF-8 are escaped, such as `\\xe9`."""
    return _SURROGATE.sub(lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", text)


def redact_url(url: str) -> str:
    """Mask user information (everything up to the last `@`) and secret query values of an address."""
    url = printable(url)
    if "://" not in url:
        return url
    return _QUERY.sub(rf"\1{MASK}", _USERINFO.sub(rf"\1{MASK}@", url))


def mask(text: str, source: str) -> str:
    """Mask a source's secrets in a text, in any spelling that a library may quote, and those of any other address.

    Pieces of a password count as secrets too, since a library may split an address in the wrong place.
    """
    text, source = printable(text), printable(source)
    for secret in sorted(secrets_of(source) | _pieces(source), key=len, reverse=True):
        if len(secret) >= SHORTEST:
            text = text.replace(secret, MASK)
        else:
            after = r"(?!\w)" if ":" in secret else "(?=@)"  # `user:password`, or the password alone
            text = re.sub(rf"(?<!\w){re.escape(secret)}{after}", MASK, text)
    return redact_url(text) if "://" in text else _QUERY.sub(rf"\1{MASK}", text)


def secrets_of(source: str) -> frozenset[str]:
    """Passwords and secret query values of a source: as written, decoded, encoded, and as in HTTP headers.

    If an address can be read in several ways, the set has the secrets of every reading.
    """
    if source[:10].lower() == "gstreamer:":
        found = {quoted or plain for quoted, plain in _PROPERTY.findall(source)}
        for address in re.findall(r"\w[\w+.-]*://[^\s\"'!]+", source):
            found |= secrets_of(address)
        return frozenset(spelling for text in found if text for spelling in _spellings(text))
    if source.startswith(("/", ".", "~")) or not ("@" in source or "?" in source):
        return frozenset()
    body = source.partition("://")[2] or source
    found = {match[2] for match in _QUERY.finditer(source)}
    for match in re.finditer("@", body):
        userinfo = body[: match.start()]
        found.add(userinfo.partition(":")[2] or userinfo)
    found.add(split_userinfo(source)[1] or "")
    return frozenset(spelling for text in found if text for spelling in _spellings(text))


def _pieces(source: str) -> frozenset[str]:
    if "://" not in source or source[:10].lower() == "gstreamer:":
        return frozenset()
    if is_ambiguous(source):
        secret = source.partition("://")[2].rpartition("@")[0]
    else:
        userinfo = split_userinfo(source)[1] or ""
        secret = userinfo.partition(":")[2] or userinfo
    pieces = {piece for form in (secret, unquote(secret)) for piece in _SEPARATOR.split(form) if len(piece) >= SHORTEST}
    return frozenset(spelling for piece in pieces for spelling in _spellings(piece))


def _spellings(text: str) -> set[str]:
    plain = unquote(text)
    in_headers = base64.b64encode(plain.encode()).decode()
    return {text, plain, in_headers} | {
        quote(form, safe=safe) for form in (text, plain) for safe in ("", "/", SAFE_IN_USERINFO)
    }
