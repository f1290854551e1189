"""Logins of HTTP and RTSP: parses what a camera offers in its 401, answers it, and finds the reason for a refusal."""

import base64
import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from .redact import PLACEHOLDER, split_userinfo

_PARAMETER = re.compile(r'([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))')
_CHALLENGE = re.compile(r"(?:^|,)\s*([A-Za-z][\w-]*)(?=\s+[\w-]+\s*=|\s*(?:,|$))")
_HASHES = {"MD5": hashlib.md5, "SHA-256": hashlib.sha256}
FFMPEG_HASHES = ("MD5",)
"""Digest algorithms that FFmpeg supports (libavformat 62). FFmpeg supports Basic too."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """One login method that a server offers.

    Attributes:
        scheme: `basic`, `digest` or another, in small letters.
        parameters: realm, nonce and so on, by their names in small letters.
    """

    scheme: str
    parameters: tuple[tuple[str, str], ...] = ()

    def get(self, name: str, default: str = "") -> str:
        """The value of a parameter."""
        return dict(self.parameters).get(name, default)

    @property
    def hash(self) -> str:
        """The algorithm of a digest: `MD5`, `SHA-256` or another."""
        return self.get("algorithm", "MD5").upper().removesuffix("-SESS")

    def is_known(self, hashes: Iterable[str]) -> bool:
        """Whether a client that supports Basic, and Digest with these algorithms, can answer this challenge."""
        if self.scheme == "basic":
            return True
        qop = self.get("qop")
        return self.scheme == "digest" and self.hash in hashes and (not qop or "auth" in re.split(r"[\s,]+", qop))

    def __str__(self) -> str:
        name = self.scheme.capitalize()
        if self.scheme != "digest":
            return name
        return f"{name} with {self.hash}" + (" and auth-int" if not self.is_known((self.hash,)) else "")


def parse_challenges(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """The challenges in the values of `WWW-Authenticate` headers, each of which may hold several."""
    found = []
    for header in headers:
        bare = _blank_quoted(header)
        starts = list(_CHALLENGE.finditer(bare))
        ends = [*(match.start() for match in starts[1:]), len(header)]
        for match, end in zip(starts, ends, strict=False):  # without a start there is an end
            pairs = _PARAMETER.findall(header[match.end() : end])
            found.append(
                Challenge(match[1].lower(), tuple((key.lower(), quoted or word) for key, quoted, word in pairs))
            )
    return tuple(found)


def refusal_reason(url: str, challenges: Iterable[Challenge], hashes: Iterable[str] = FFMPEG_HASHES) -> str:
    """Why a source answered 401, and what to do, without a secret.

    Args:
        url: the address, with the user and password that were sent, if any.
        challenges: the ways to log in that it offered; none if they are not known.
        hashes: the digest algorithms that were tried.
    """
    challenges, hashes = tuple(challenges), tuple(hashes)
    scheme, userinfo, _ = split_userinfo(url)
    if challenges and not any(challenge.is_known(hashes) for challenge in challenges):
        offered = " or ".join(dict.fromkeys(map(str, challenges)))
        known = " or ".join(f"Digest with {name}" for name in hashes)
        return (
            f"it asks for a login (401) that FFmpeg does not know: {offered}; allow {known}, or Basic, in the camera"
            if hashes == FFMPEG_HASHES
            else f"it asks for a login (401) that is not supported: {offered}; allow {known}, or Basic, in the camera"
        )
    if not userinfo:
        return f"it asks for a login (401), and the address has none: write {scheme}{PLACEHOLDER}"
    return "it rejected the user name or password (401)"


class Credentials:
    """The user and password of an address, and the answer to the challenge that a server has sent.

    Args:
        url: the address.
    """

    def __init__(self, url: str) -> None:
        user, _, password = (split_userinfo(url)[1] or "").partition(":")
        self._user, self._password = unquote(user), unquote(password)
        self._challenge: Challenge | None = None
        self._count = 0

    def accept(self, challenges: Iterable[Challenge]) -> bool:
        """Choose the best challenge that can be answered. Returns False if there is none or no user is known."""
        known = [challenge for challenge in challenges if challenge.is_known(_HASHES)]
        known.sort(key=lambda challenge: (challenge.scheme, challenge.hash))  # Basic, MD5, SHA-256
        self._challenge, self._count = (known[-1] if known else None), 0
        return bool(self._challenge and self._user)

    def answer(self, method: str, path: str) -> str | None:
        """The value of the `Authorization` header of a request; None if the server has not asked for a login."""
        challenge = self._challenge
        if challenge is None:
            return None
        if challenge.scheme == "basic":
            return "Basic " + base64.b64encode(f"{self._user}:{self._password}".encode()).decode()
        return self._digest(challenge, method, path)

    def _digest(self, challenge: Challenge, method: str, path: str) -> str:
        # RFC 7616, section 3.4.
        def hashed(*parts: str) -> str:
            return _HASHES[challenge.hash](":".join(parts).encode()).hexdigest()

        self._count += 1
        realm, nonce = challenge.get("realm"), challenge.get("nonce")
        count, own = f"{self._count:08x}", secrets.token_hex(8)
        secret = hashed(self._user, realm, self._password)
        if challenge.get("algorithm").upper().endswith("-SESS"):
            secret = hashed(secret, nonce, own)
        fields = {
            "username": self._user.replace("\\", r"\\").replace('"', r"\""),
            "realm": realm,
            "nonce": nonce,
            "uri": path,
        }
        if challenge.get("qop"):
            response = hashed(secret, nonce, count, own, "auth", hashed(method, path))
            more = f', qop=auth, nc={count}, cnonce="{own}"'
        else:
            response = hashed(secret, nonce, hashed(method, path))
            more = f', cnonce="{own}"' if challenge.get("algorithm").upper().endswith("-SESS") else ""
        fields["response"] = response
        fields |= {key: challenge.get(key) for key in ("opaque",) if challenge.get(key)}
        text = ", ".join(f'{key}="{value}"' for key, value in fields.items())
        if challenge.get("algorithm"):
            more += f", algorithm={challenge.get('algorithm')}"
        return f"Digest {text}{more}"


def _blank_quoted(header: str) -> str:
    return re.sub(r'"(?:[^"\\]|\\.)*"', lambda match: '"' + "_" * (len(match[0]) - 2) + '"', header)
