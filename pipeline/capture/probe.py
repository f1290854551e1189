"""Tries one camera: opens its source, reads a frame, and closes it."""

from dataclasses import replace

import anyio

from ..config import CameraConfig
from ..errors import SourceError, SourceFault
from ..sources.reader import SourceInfo
from .capture import ignore_log, start_capture
from .keeper import CaptureKeeper
from .starts import CaptureStarts


async def probe(config: CameraConfig, starts: CaptureStarts) -> SourceInfo | SourceError:
    """Open a source, read one frame and close it, within its connect and stall timeouts.

    Args:
        config: the camera.
        starts: the budget of process starts, shared by all cameras that are tried.

    Returns:
        The source's properties, with the size of the frame; or the error that says why it cannot be read.
    """
    try:
        async with (
            CaptureKeeper(config, ignore_log, start_capture, starts) as keeper,
            keeper.connection() as capture,
        ):
            with anyio.move_on_after(config.stall_timeout_s):
                captured = await capture.receive()
                if captured is None:
                    return SourceError(SourceFault.UNREADABLE, "none of its frames can be read")
                height, width, _ = captured.pixels.shape
                return replace(capture.info, width=width, height=height)
            return SourceError(SourceFault.STALLED, f"it opened, but sent no frame for {config.stall_timeout_s:g} s")
    except SourceError as exc:
        return exc
