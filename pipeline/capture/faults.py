"""Finds the reason for a failure in the log of OpenCV and FFmpeg, whose functions only report that they failed."""

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
    _rule(_STATUS + r"401|Unauthorized", SourceFault.AUTH, "it rejected the user name or password (401)"),
    _rule(_STATUS + r"403|Forbidden", SourceFault.AUTH, "this user has no access to the stream (403)"),
    _rule(_STATUS + r"404", SourceFault.NOT_FOUND, "there is no stream at this path (404)"),
    _rule(_STATUS + r"453", SourceFault.REFUSED, "it has no bandwidth left for another viewer (453)"),
    _rule(_STATUS + r"[45]\d\d", SourceFault.REFUSED, "it answered with an error"),
    _rule(r"Connection refused", SourceFault.REFUSED, "nothing listens at this host and port"),
    _rule(r"No route to host|Network is unreachable", SourceFault.REFUSED, "its host cannot be reached"),
    _rule(r"Failed to resolve", SourceFault.MISSING, "its host name cannot be resolved"),
    _rule(r"not on whitelist", SourceFault.REFUSED, "it redirects to a protocol that is not allowed"),
    _rule(r"\bSSL\b|\bTLS\b|certificate", SourceFault.TLS, "the encrypted connection failed"),
    _rule(r"timeout triggered|timed out", SourceFault.TIMEOUT, "it did not answer in time"),
    _rule(
        r"(?:reading RTSP data|reading HTTP response): End of file",
        SourceFault.CLOSED,
        "it closed the connection without a response that FFmpeg understands",
    ),
    _rule(
        r"Decoder .*not found|Could not find codec|Unsupported codec|unimplemented",
        SourceFault.CODEC,
        "its codec is not supported by this build of FFmpeg",
    ),
    _rule(
        r"support hardware accelerated (\w+) decoding",
        SourceFault.CODEC,
        "this build of FFmpeg has no decoder for {}; convert it to H.264, or set the camera to it",
    ),
    _rule(
        r"moov atom not found",
        SourceFault.UNREADABLE,
        "it is not a video, or its end (where MP4 has its index) is missing",
    ),
)


_DAMAGE = re.compile(
    r"\[OPENCV:FFMPEG:(?:8|16)\]|packet corrupt|EOI missing|missed \d+ packets|^left out:|^scaled:", re.IGNORECASE
)
"""Matches FFmpeg's errors (level 16), which healthy media never cause, and the warnings that report damage."""


_TRUNCATED = re.compile(r"File ended prematurely|partial file|Stream ends prematurely", re.IGNORECASE)
"""Matches FFmpeg's messages about a missing end of Matroska files, MP4 files and files over HTTP."""


def is_truncation(line: str) -> bool:
    """Whether a line reports that the end of a file is missing."""
    return _TRUNCATED.search(line) is not None


def is_damage(line: str) -> bool:
    """Whether a line reports a damaged image or packet, rather than a source that cannot be opened."""
    return _DAMAGE.search(line) is not None and classify((line,)) is None


def classify(lines: Iterable[str]) -> tuple[SourceFault, str] | None:
    """Find the reason for a failure in log lines.

    Args:
        lines: the log, without secrets.

    Returns:
        The fault, and its meaning in words followed by the log line that shows it; None if no line shows a fault.
    """
    lines = tuple(lines)
    for rule in _RULES:
        for line in lines:
            if (found := rule.pattern.search(line)) is not None:
                return rule.fault, f"{rule.advice.format(*found.groups())} [{_bare(line)}]"
    return None


def _bare(line: str) -> str:
    return re.sub(r"^\[[^\]]*\]\s*(?:global \S+ \S+ )?", "", line)
