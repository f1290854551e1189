"""Stall detection: an open source that delivers nothing new for too long counts as failed."""

from collections.abc import Callable

import anyio

from ..config import CameraConfig
from ..errors import SourceError, SourceFault
from ..sources.reader import SourceInfo
from .capture import GRACE_S, Capture, CapturedFrame
from .pacing import LONGEST_GAP_NS, SECOND_NS
from .rate import FreezeWatch


class StallWatch:
    """Receives a capture's frames, and raises if none arrives for too long, or if a device repeats the same image.

    Args:
        capture: an open source.
        config: its camera.
        clock: monotonic seconds.
    """

    def __init__(self, capture: Capture, config: CameraConfig, clock: Callable[[], float]) -> None:
        self._capture = capture
        self._stall_timeout_s = config.stall_timeout_s
        self._timeout_s = config.stall_timeout_s + GRACE_S + _longest_pause_s(config, capture.info)
        self._freeze = FreezeWatch(clock) if capture.info.backend == "v4l2" else None

    async def receive(self) -> CapturedFrame | None:
        """The next frame; None once the source has ended.

        Raises:
            SourceError: `STALLED`, or what `Capture.receive` raises.
        """
        frame = await self._next()
        if frame is not None and self._is_frozen(frame):
            raise self._stalled("the source repeats the same image")
        return frame

    async def _next(self) -> CapturedFrame | None:
        while True:
            with anyio.move_on_after(self._timeout_s):
                return await self._capture.receive()
            if not self._capture.starved:  # otherwise the consumer is slow, not the source
                raise self._stalled("no new frame")

    def _is_frozen(self, frame: CapturedFrame) -> bool:
        return self._freeze is not None and self._freeze.frozen_s(frame.pixels) >= self._stall_timeout_s

    def _stalled(self, symptom: str) -> SourceError:
        return SourceError(SourceFault.STALLED, f"{symptom} for {self._stall_timeout_s:g} s")


def _longest_pause_s(config: CameraConfig, info: SourceInfo) -> float:
    # A frame that is held back until it is due is not late.
    rate = config.fps or (info.fps if info.paced else None)
    return (1 / rate if rate else 0.0) + (0.0 if info.live else LONGEST_GAP_NS / SECOND_NS)
