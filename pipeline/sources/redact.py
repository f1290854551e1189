"""Keeps secrets out of everything people read: addresses of cameras hold passwords, and libraries quote addresses."""

import base64
import re
from urllib.parse import quote, unquote

MASK = "***"
SAFE_IN_USERINFO = ":%!$&()*+,;=~"
"""What user information may hold as it is, percent signs of what is encoded already among it."""
_SECRET_KEYS = r"pass\w*|pwd|\w*token|\w*auth|\w*secret|sig|signature|\w*key|credentials?"
_QUERY = re.compile(rf"([?&;](?:{_SECRET_KEYS})=)([^&\s\"'<>]*)", re.IGNORECASE)
_USERINFO = re.compile(r"(\w[\w+.-]*://)[^\s\"'<>]*@")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(?::\d*)?(?=[/?#]|$)")


def split_userinfo(url: str) -> tuple[str, str | None, str]:
    """Split an address into `scheme://`, user information (as written, or None) and the rest.

    The standard's reading comes first: user information ends at the last `@` before the first `/`, `?` or `#`. Where
    that leaves no valid host, a password was written as it is, and it ends at the last `@` that a host follows.
    """
    scheme, _, body = url.partition("://")
    authority = re.split(r"[/?#]", body, maxsplit=1)[0]
    user, at, host = authority.rpartition("@")
    if _HOST.fullmatch(host):
        return f"{scheme}://", user if at else None, body[len(user) + len(at) :]
    for match in reversed(list(re.finditer("@", body))):
        if _HOST.match(body, match.end()):
            return f"{scheme}://", body[: match.start()], body[match.end() :]
    return f"{scheme}://", None, body


def redact_url(url: str) -> str:
    """The address without user information and secret query values: everything up to the last `@` is masked."""
    if "://" not in url:
        return url
    return _QUERY.sub(rf"\1{MASK}", _USERINFO.sub(rf"\1{MASK}@", url))


def mask(text: str, source: str) -> str:
    """A text without the secrets of a source, in whatever spelling a library quotes them, or of any address."""
    for secret in sorted(secrets_of(source), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return redact_url(text) if "://" in text else _QUERY.sub(rf"\1{MASK}", text)


def secrets_of(source: str) -> frozenset[str]:
    """The secrets in a source: passwords and secret query values; as written, decoded, encoded, and as in HTTP headers.

    Where an address can be read in several ways, the secrets of every reading are in the set.
    """
    if source.startswith(("/", ".", "~")) or not ("@" in source or "?" in source):
        return frozenset()
    body = source.partition("://")[2] or source
    found = {match[2] for match in _QUERY.finditer(source)}
    for match in re.finditer("@", body):
        userinfo = body[: match.start()]
        found.add(userinfo.partition(":")[2] or userinfo)
    found.add(split_userinfo(source)[1] or "")
    return frozenset(spelling for text in found if text for spelling in _spellings(text))


def _spellings(text: str) -> set[str]:
    plain = unquote(text)
    in_headers = base64.b64encode(plain.encode()).decode()
    return {text, plain, in_headers} | {
        quote(form, safe=safe) for form in (text, plain) for safe in ("", "/", SAFE_IN_USERINFO)
    }
