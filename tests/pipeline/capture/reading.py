"""Helpers that read a capture to its end, and look for its process."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from retinad.pipeline.capture.capture import Capture, CapturedFrame, open_capture
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.errors import SourceError

from .servers import read_number


async def every(capture: Capture) -> AsyncIterator[CapturedFrame]:
    while (captured := await capture.receive()) is not None:
        yield captured
        del captured


async def numbers(config: CameraConfig) -> list[int]:
    async with open_capture(config) as capture:
        return [read_number(captured.pixels) async for captured in every(capture)]


async def failure(config: CameraConfig) -> SourceError:
    try:
        async with open_capture(config) as capture:
            while await capture.receive() is not None:
                pass
    except SourceError as exc:
        return exc
    pytest.fail("the capture did not fail")


async def count(capture: Capture) -> int:
    return len([None async for _ in every(capture)])


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state != "Z"


def capture_processes() -> list[str]:
    """Children of this process that are running, or have not been reaped."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in children if b"capture.child" in Path(f"/proc/{pid}/cmdline").read_bytes()]
