"""How long to wait before a failed source is tried again."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, so that cameras that died together do not come back together.

    Attributes:
        first_s: longest wait before the first retry, in seconds; it doubles with each.
        cap_s: longest wait of all.
        permanent_s: shortest wait where trying again cannot help soon; a wrong password tried often locks cameras.
        healthy_s: seconds of frames after which failures are counted from the start again.
    """

    first_s: float = 0.5
    cap_s: float = 30.0
    permanent_s: float = 60.0
    healthy_s: float = 10.0

    def delay_s(self, attempt: int, permanent: bool, random: Callable[[], float]) -> float:
        """Seconds to wait after failure number `attempt`, from 1.

        Args:
            attempt: failures in a row.
            permanent: whether trying again cannot help soon.
            random: uniform in [0, 1).
        """
        longest_s = min(self.cap_s, self.first_s * 2.0 ** min(attempt - 1, 30))
        return self.permanent_s + random() * self.cap_s if permanent else random() * longest_s
