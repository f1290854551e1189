"""Finds out why a stream failed from what OpenCV and FFmpeg printed, since their functions only say that it did."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import SourceFault


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    fault: SourceFault
    advice: str


def _rule(pattern: str, fault: SourceFault, advice: str) -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE), fault, advice)


_STATUS = r"(?:failed:|HTTP error|Server returned) ?"
_RULES = (
    _rule(_STATUS + r"401|Unauthorized", SourceFault.AUTH, "it refused the user name or password (401)"),
    _rule(_STATUS + r"403|Forbidden", SourceFault.AUTH, "it forbids this user the stream (403)"),
    _rule(_STATUS + r"404", SourceFault.NOT_FOUND, "it knows no stream at this path (404)"),
    _rule(_STATUS + r"453", SourceFault.REFUSED, "it has no bandwidth left for another viewer (453)"),
    _rule(_STATUS + r"[45]\d\d", SourceFault.REFUSED, "it answered with an error"),
    _rule(r"Connection refused", SourceFault.REFUSED, "nothing listens at this host and port"),
    _rule(r"No route to host|Network is unreachable", SourceFault.REFUSED, "its host cannot be reached"),
    _rule(r"Failed to resolve", SourceFault.MISSING, "its host name is not known"),
    _rule(r"not on whitelist", SourceFault.REFUSED, "it sends to an address of a kind that is not followed"),
    _rule(r"\bSSL\b|\bTLS\b|certificate", SourceFault.TLS, "no encrypted connection came about"),
    _rule(r"timeout triggered|timed out", SourceFault.TIMEOUT, "it did not answer in time"),
    _rule(
        r"(?:reading RTSP data|reading HTTP response): End of file",
        SourceFault.CLOSED,
        "it closed the connection after no answer, or none that FFmpeg knows",
    ),
    _rule(
        r"Decoder .*not found|Could not find codec|Unsupported codec|unimplemented",
        SourceFault.CODEC,
        "its coding is not supported by this build of FFmpeg",
    ),
    _rule(
        r"moov atom not found",
        SourceFault.UNREADABLE,
        "it is no video, or its end (where MP4 has its index) is missing",
    ),
)


_DAMAGE = re.compile(
    r"\[OPENCV:FFMPEG:(?:8|16)\]|packet corrupt|EOI missing|missed \d+ packets|^left out:|^scaled:", re.IGNORECASE
)
"""FFmpeg's errors (16), which it has none of with healthy media, and the warnings that tell of damage."""


def is_damage(line: str) -> bool:
    """Whether a line tells of a damaged picture or packet, rather than of a source that cannot be opened."""
    return _DAMAGE.search(line) is not None and classify((line,)) is None


def classify(lines: Iterable[str]) -> tuple[SourceFault, str] | None:
    """The reason in the lines, or None.

    Args:
        lines: what was printed, without secrets.

    Returns:
        The fault, and what it means in words with the line that says so.
    """
    lines = tuple(lines)
    for rule in _RULES:
        for line in lines:
            if rule.pattern.search(line):
                return rule.fault, f"{rule.advice} [{_bare(line)}]"
    return None


def _bare(line: str) -> str:
    return re.sub(r"^\[[^\]]*\]\s*(?:global \S+ \S+ )?", "", line)
