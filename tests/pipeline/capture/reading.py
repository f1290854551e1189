"""Reads captures to their end."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from retinad.pipeline.capture.capture import Capture, Captured, open_capture
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.errors import SourceError

from .servers import read_number


async def every(capture: Capture) -> AsyncIterator[Captured]:
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
    pytest.fail("it did not fail")


async def count(capture: Capture) -> int:
    return len([None async for _ in every(capture)])


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state != "Z"


def capture_processes() -> list[str]:
    """Those of this very process that run or were not waited for."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in children if b"sources.child" in Path(f"/proc/{pid}/cmdline").read_bytes()]
