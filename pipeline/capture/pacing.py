"""Frame pacing: a rate cap leaves out frames in live mode, and delays the frames of a file in lossless mode."""

from ..config import CameraConfig, CaptureMode
from ..sources.reader import SourceInfo

SECOND_NS = 1_000_000_000
LONGEST_GAP_NS = 2 * SECOND_NS
"""Longest gap between two frames of a file. A longer one is ignored: the timestamps are considered wrong."""
_LATE_NS = SECOND_NS


class Pacer:
    """Decides when each frame of a source is due, across all passes.

    The cap is the camera's maximum frame rate. A live source's frames above the cap are left out. Frames of other
    sources are held back until they are due. In live mode, a video's timestamps say when, and frames above the cap are
    left out. In lossless mode, and for images, which have no rate of their own, the cap says when. Without a cap,
    lossless mode holds nothing back.

    Args:
        info: kind and rate of the source.
        config: the camera, for its mode and cap.
    """

    def __init__(self, info: SourceInfo, config: CameraConfig) -> None:
        self._config = config
        self._due_ns: int | None = None
        self._pts_ns: int | None = None
        self._next_kept_ns: int | None = None
        self._set_plan(info)

    def next_pass(self, info: SourceInfo) -> None:
        """Prepare for the next pass: its first frame is due one interval after the last one of the previous pass."""
        self._pts_ns = None
        self._set_plan(info)

    def _set_plan(self, info: SourceInfo) -> None:
        cap, is_live = self._config.fps, self._config.mode is CaptureMode.LIVE
        self._live = info.live
        self._free = info.paced or (cap is None and (info.live or not is_live))
        self._has_pace = info.backend != "images"  # an animation has its own timestamps
        self._own_ns = round(SECOND_NS / (info.fps or 25.0))
        self._cap_ns = round(SECOND_NS / cap) if cap else 0

    def wait_ns(self, now_ns: int, pts_ns: int | None) -> int | None:
        """Nanoseconds to hold a frame back, or None to leave it out.

        Args:
            now_ns: monotonic time.
            pts_ns: the frame's own timestamp, if it has one.
        """
        if self._free:
            return 0
        if self._live:
            return 0 if self._is_kept(now_ns) else None
        keeps_pace = self._config.mode is CaptureMode.LIVE and (self._has_pace or pts_ns is not None)
        due_ns = self._plan(now_ns, pts_ns, keeps_pace)
        if keeps_pace and not self._is_kept(due_ns):
            return None
        return max(0, due_ns - now_ns)

    def _is_kept(self, time_ns: int) -> bool:
        # A tenth of an interval early is on time; otherwise jitter would halve a rate that is near the cap.
        next_ns = time_ns if self._next_kept_ns is None else self._next_kept_ns
        if time_ns < next_ns - self._cap_ns // 10:
            return False
        self._next_kept_ns = max(next_ns + self._cap_ns, time_ns)
        return True

    def _plan(self, now_ns: int, pts_ns: int | None, keeps_pace: bool) -> int:
        if self._due_ns is None:
            due_ns = now_ns
        else:
            due_ns = self._due_ns + (self._gap_ns(pts_ns) if keeps_pace else self._cap_ns or self._own_ns)
            if due_ns < now_ns - _LATE_NS:
                due_ns = now_ns
        self._due_ns, self._pts_ns = due_ns, pts_ns
        return due_ns

    def _gap_ns(self, pts_ns: int | None) -> int:
        if pts_ns is None or self._pts_ns is None:
            return self._own_ns
        gap_ns = pts_ns - self._pts_ns
        return gap_ns if 0 < gap_ns <= LONGEST_GAP_NS else self._own_ns
