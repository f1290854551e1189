"""Keeps secrets out of the log: masks known secrets anywhere in a text, and all credentials in addresses."""

import json
import re
from collections.abc import Iterable

from retinad.pipeline.sources.redact import MASK, SHORTEST, mask


class Redactor:
    """Masks known secrets, and credentials in addresses. Known secrets are added and never removed."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """Mask these secrets too, also in quoted forms. Thread-safe.

        Secrets shorter than `SHORTEST` are masked within addresses only.
        """
        self._secrets |= {form for secret in secrets if len(secret) >= SHORTEST for form in _quoted_forms(secret)}
        longest_first = sorted(self._secrets, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def redact(self, text: str) -> str:
        """The text without secrets."""
        if self._pattern is not None:
            text = self._pattern.sub(MASK, text)
        return mask(text, "") if "=" in text or "://" in text else text


def _quoted_forms(secret: str) -> set[str]:
    return {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1]}
