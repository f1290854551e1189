"""Frame pacing: a rate cap drops frames of a camera, and delays frames of a file."""

from ..config import CameraConfig, CaptureMode
from ..sources.reader import SourceInfo

SECOND_NS = 1_000_000_000
LONGEST_GAP_NS = 2 * SECOND_NS
"""A longer gap between two frames of a file is ignored: its timestamps are considered wrong."""
_LATE_NS = SECOND_NS


class Pacer:
    """Decides for each frame of one pass through a source when it is due.

    Frames of a live source above the cap are left out. Frames of other sources are held back until they are due: by the
    cap, or, in live mode, by their own timestamps. Without a cap, lossless mode holds nothing back.

    Args:
        info: kind and rate of the source.
        config: mode and cap.
    """

    def __init__(self, info: SourceInfo, config: CameraConfig) -> None:
        self._live = info.live
        self._capped = config.fps is not None
        self._free = config.fps is None and (info.live or config.mode is CaptureMode.LOSSLESS)
        self._interval_ns = round(SECOND_NS / (config.fps or info.fps or 25.0))
        self._due_ns: int | None = None
        self._pts_ns: int | None = None

    def wait_ns(self, now_ns: int, pts_ns: int | None) -> int | None:
        """Nanoseconds to hold a frame back, or None to leave it out.

        Args:
            now_ns: monotonic time.
            pts_ns: the frame's own timestamp, if it has one.
        """
        if self._free:
            return 0
        return self._choose(now_ns) if self._live else self._hold(now_ns, pts_ns)

    def _choose(self, now_ns: int) -> int | None:
        # A tenth of an interval early is on time; otherwise jitter would halve a rate that is near the cap.
        due_ns = now_ns if self._due_ns is None else self._due_ns
        if now_ns < due_ns - self._interval_ns // 10:
            return None
        self._due_ns = max(due_ns + self._interval_ns, now_ns)
        return 0

    def _hold(self, now_ns: int, pts_ns: int | None) -> int:
        if self._due_ns is None:
            due_ns = now_ns
        else:
            due_ns = self._due_ns + self._gap_ns(pts_ns)
            if due_ns < now_ns - _LATE_NS:
                due_ns = now_ns
        self._due_ns, self._pts_ns = due_ns, pts_ns
        return max(0, due_ns - now_ns)

    def _gap_ns(self, pts_ns: int | None) -> int:
        if self._capped or pts_ns is None or self._pts_ns is None:
            return self._interval_ns
        gap_ns = pts_ns - self._pts_ns
        return gap_ns if 0 < gap_ns <= LONGEST_GAP_NS else self._interval_ns
