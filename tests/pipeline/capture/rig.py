"""A camera with its queue and a consumer, connected as in the service."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict, Unpack

import anyio

from retinad.pipeline.capture.backoff import Backoff
from retinad.pipeline.capture.camera import Camera, CameraState, CameraStatus
from retinad.pipeline.capture.capture import Capture, OnLog, start_capture
from retinad.pipeline.capture.keeper import StartCapture
from retinad.pipeline.capture.starts import CaptureStarts
from retinad.pipeline.config import CameraConfig, CaptureMode, RtspTransport
from retinad.pipeline.frame_queue import FrameQueue, FrameQueues
from retinad.pipeline.frames import Frame

from ...deadlines import scaled

QUICK = Backoff(first_s=0.1, cap_s=0.2, permanent_s=60.0, healthy_s=10.0)


@dataclass
class Rig:
    """A camera and the record of its run."""

    camera: Camera
    queue: FrameQueue
    statuses: list[CameraStatus]
    captures: list[Capture]
    log: list[str] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)

    @property
    def states(self) -> list[CameraState]:
        return [status.state for status in self.statuses]

    def order(self) -> list[tuple[int, int]]:
        return [(frame.stamp.stream_epoch, frame.stamp.source_seq) for frame in self.frames]

    def adds_up(self) -> bool:
        """Whether the counters account for every frame; the consumer may have been stopped while holding one."""
        return self.queue.counters.in_flight - len(self.queue) in (0, 1)

    async def reached(self, condition: Callable[["Rig"], bool], timeout_s: float = 30.0) -> None:
        with anyio.fail_after(scaled(timeout_s)):
            while not condition(self):  # noqa: ASYNC110  # the condition has no event
                await anyio.sleep(0.005)


Consume = Callable[[Frame], Awaitable[None]]


async def glance(frame: Frame) -> None:
    """Consume a frame without delay."""


def make_rig(
    config: CameraConfig,
    *,
    backoff: Backoff = QUICK,
    capture: StartCapture = start_capture,
    starts: CaptureStarts | None = None,
) -> Rig:
    statuses: list[CameraStatus] = []
    captures: list[Capture] = []
    log: list[str] = []

    @asynccontextmanager
    async def recorded(config: CameraConfig, on_log: OnLog) -> AsyncIterator[Capture]:
        async with capture(config, on_log) as opened:
            captures.append(opened)
            yield opened

    queue = FrameQueues().open(config.name, config.mode, config.queue_frames)
    camera = Camera(config, queue, statuses.append, on_log=log.append, capture=recorded, starts=starts, backoff=backoff)
    return Rig(camera, queue, statuses, captures, log)


@asynccontextmanager
async def running(rig: Rig, consume: Consume = glance, *, keep: bool = False) -> AsyncIterator[Rig]:
    """Run the camera, and a consumer that records frames (with a copy of their pixels only if `keep`)."""

    async def take() -> None:
        while True:
            frame = rig.queue.take_nowait()
            if frame is None:
                await anyio.sleep(0.001)
                continue
            await consume(frame)
            rig.frames.append(replace(frame, pixels=frame.pixels.copy() if keep else frame.pixels[:0].copy()))
            del frame
            rig.queue.mark_published()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        tasks.start_soon(rig.camera.run)
        yield rig
        tasks.cancel_scope.cancel()


async def play(config: CameraConfig, *, keep: bool = False, consume: Consume = glance, timeout_s: float = 30.0) -> Rig:
    """Run a camera until it ends or fails and every frame is consumed."""
    rig = make_rig(config)
    async with running(rig, consume, keep=keep):
        await rig.reached(lambda rig: rig.camera.status.state in (CameraState.ENDED, CameraState.FAILED), timeout_s)
        with anyio.fail_after(scaled(20)):
            await rig.queue.settled()
    return rig


class Changes(TypedDict, total=False):
    """Fields of `CameraConfig` that tests set."""

    fps: float | None
    loop: int
    queue_frames: int
    connect_timeout_s: float
    stall_timeout_s: float
    retry: bool
    transport: RtspTransport
    size: tuple[int, int] | None
    fourcc: str | None
    crop: tuple[int, int, int, int] | None


def lossless(source: str | Path, **changes: Unpack[Changes]) -> CameraConfig:
    return replace(CameraConfig("cam", str(source), mode=CaptureMode.LOSSLESS, retry=False), **changes)


def live(source: str | Path, **changes: Unpack[Changes]) -> CameraConfig:
    return replace(CameraConfig("cam", str(source)), **changes)
