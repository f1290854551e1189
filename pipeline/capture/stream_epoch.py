"""One stream epoch: a pass through an open source, with one number for all its frames."""

from ..frames import Frame, FrameStamp
from ..sources.reader import SourceInfo
from .capture import CapturedFrame
from .pacing import SECOND_NS
from .protocol import Ended


class StreamEpoch:
    """Stamps the frames of one pass through an open source, and judges whether its end came too early.

    Args:
        camera: name of the camera.
        number: number of the epoch.
        info: what the source reported when it was opened.

    Attributes:
        number: number of the epoch.
        is_empty: whether no frame has arrived.
    """

    def __init__(self, camera: str, number: int, info: SourceInfo) -> None:
        self.number = number
        self.is_empty = True
        self._camera = camera
        self._info = info
        self._last_pts_ns: int | None = None

    def stamp(self, captured: CapturedFrame) -> Frame:
        """Turn a captured frame into a numbered frame of this epoch."""
        self.is_empty = False
        self._last_pts_ns = captured.pts_ns
        height, width, _ = captured.pixels.shape
        stamp = FrameStamp(
            camera=self._camera,
            stream_epoch=self.number,
            source_seq=captured.source_seq,
            capture_unix_ns=captured.capture_unix_ns,
            capture_monotonic_ns=captured.capture_monotonic_ns,
            pts_ns=captured.pts_ns,
            source_size=(width, height),
            crop=captured.crop,
        )
        return Frame(stamp, captured.pixels)

    def early_end(self, ended: Ended | None, *, damaged: bool, truncated: bool = False) -> str | None:
        """Why the source ended too early; None if it did not.

        Args:
            ended: the capture process's account of the end.
            damaged: whether the log reported damage.
            truncated: whether the log reported that the end of the file is missing.
        """
        expected = self._info.frame_count
        if ended is None or expected is None or ended.frames >= expected:
            return None
        if not (self._info.counted or truncated):
            return None
        if not damaged and self._is_at_end(expected):
            return None
        return f"it ended after {ended.frames} of {expected} frames"

    def _is_at_end(self, expected: int) -> bool:
        # Some containers hold no count, and OpenCV computes one from length and rate: too high a count if frame times
        # are uneven. Such a source is complete if its last frame is where `expected` frames at the nominal rate end.
        if self._last_pts_ns is None or not self._info.fps:
            return False
        return round(self._last_pts_ns / SECOND_NS * self._info.fps) >= expected - 1
