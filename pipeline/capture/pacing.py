"""Decides when a frame is due: a rate cap chooses among a camera's frames, and holds back those of a file."""

from ..config import CameraConfig, CaptureMode
from ..sources.reader import SourceInfo

SECOND_NS = 1_000_000_000
LONGEST_GAP_NS = 2 * SECOND_NS
"""A longer gap between a file's frames is not waited for: its times are taken to be wrong."""
_LATE_NS = SECOND_NS


class Pacer:
    """The plan of one pass through a source.

    Live sources: frames above the cap are left out. Others are held back until they are due: by the cap, or, in live
    mode, by their own times. Without a cap, lossless mode holds nothing back.

    Args:
        info: what kind of source it is.
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
        """How long a frame is to wait, or None if it is to be left out.

        Args:
            now_ns: monotonic time.
            pts_ns: the frame's own time, if it has one.
        """
        if self._free:
            return 0
        return self._choose(now_ns) if self._live else self._hold(now_ns, pts_ns)

    def _choose(self, now_ns: int) -> int | None:
        # A tenth of an interval early is on time, else jitter would halve a rate that is near the cap.
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
