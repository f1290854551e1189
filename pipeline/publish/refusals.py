"""Counts refused connections, by their address, key and reason, until they are logged."""

from collections import Counter
from dataclasses import dataclass

KEY_START = 8
"""Number of characters of a key that are shown: enough to find its file."""
UNKNOWN = "unknown"
"""Text shown as the address of a peer that disconnected before its address could be looked up."""
_MOST = 64
_OTHERS = "too many different ones to list"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A kind of refused connection.

    Attributes:
        address: host, or `process N` on an ipc endpoint; `UNKNOWN` if the peer disconnected before.
        reason: why the connection was refused.
        key: the first characters of the peer's public key, or None if it showed none.
    """

    address: str
    reason: str
    key: str | None = None


class Refusals:
    """The refusals since the last `take`. The number of different ones is limited."""

    def __init__(self) -> None:
        self._counts: Counter[Refusal] = Counter()

    def add(self, refusal: Refusal) -> None:
        """Count a refusal."""
        known = refusal in self._counts or len(self._counts) < _MOST
        self._counts[refusal if known else Refusal(UNKNOWN, _OTHERS)] += 1

    def take(self) -> dict[Refusal, int]:
        """The refusals since the last call, and how often each occurred."""
        counts = dict(self._counts)
        self._counts.clear()
        return counts
