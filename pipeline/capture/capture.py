"""The event loop's side of a capture process: opens a source, receives its frames, explains failures."""

import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import anyio
import anyio.lowlevel
import msgspec

from ..config import CameraConfig
from ..errors import SourceError, SourceFault
from ..frames import CropPlace, Pixels
from ..sources.reader import SourceInfo
from ..sources.redact import mask
from .faults import classify
from .process import CaptureProcess
from .protocol import Ended, Failed, FrameMemory, FrameReady, FromChild, Opened, Ready, Release, Rewind
from .slots import ReleaseSender, SlotReader

START_TIMEOUT_S = 30.0
"""Seconds for a capture process to load its libraries; 0.2 on an idle machine."""
_GRACE_S = 0.25  # the capture process's own timeouts come first, since they report a reason
_LINES_KEPT = 20

OnLog = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class CapturedFrame:
    """One frame as it comes from a source.

    Attributes:
        pixels: uint8 [height, width, 3], BGR, read-only, in shared memory. The slot is freed with the last view of it.
        source_seq: number within this opening of the source, from 0; skipped and unreadable frames count.
        capture_unix_ns: wall-clock time in nanoseconds.
        capture_monotonic_ns: `CLOCK_MONOTONIC` time in nanoseconds.
        pts_ns: the container's presentation time in nanoseconds, or None.
        skipped: frames captured and discarded since the last one, because no slot was free.
        failed: frames since the last one that could not be decoded.
        crop: where the pixels are in the captured frame, or None if they are all of it.
    """

    pixels: Pixels
    source_seq: int
    capture_unix_ns: int
    capture_monotonic_ns: int
    pts_ns: int | None
    skipped: int = 0
    failed: int = 0
    crop: CropPlace | None = None


class Capture:
    """An open source. Created by `open_capture`.

    Attributes:
        info: what the source reported when it was opened.
        ended: the capture process's final counts once the source has ended or failed, else None.
    """

    def __init__(self, process: CaptureProcess, config: CameraConfig, on_log: OnLog) -> None:
        self.info = SourceInfo(backend="")
        self.ended: Ended | None = None
        self._process = process
        self._config = config
        self._on_log = on_log
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._decoder = msgspec.msgpack.Decoder(FromChild)
        self._encoder = msgspec.msgpack.Encoder()
        self._slots: SlotReader | None = None
        self._releases = ReleaseSender(self._send_release)

    @property
    def pid(self) -> int:
        """Process id of the capture process."""
        return self._process.pid

    @property
    def starved(self) -> bool:
        """Whether the source cannot deliver a frame until a received one is released."""
        return self._slots is not None and self._slots.exhausted

    async def receive(self) -> CapturedFrame | None:
        """The next frame; None once the source has ended. Cancelling the call loses no frame.

        Raises:
            SourceError: the source or its process failed.
        """
        if self.ended is not None:
            return None
        message = await self._message()
        if isinstance(message, Ended):
            self._read_log()  # all that was printed before the end is available
            self.ended = message
            return None
        assert isinstance(message, FrameReady)
        return self._captured(message)

    async def forward_log(self) -> None:
        """Forward log lines until cancelled, for callers that wait for something other than `receive`."""
        while True:
            await self._process.printed()
            self._read_log()

    async def rewind(self) -> None:
        """Open a source that has ended again, and update `info`.

        Raises:
            SourceError: the source cannot be opened.
        """
        assert self.ended is not None
        self.ended = None
        self._send(self._encoder.encode(Rewind()))
        await self._opened()

    async def connect(self) -> None:
        """Send the config and wait until the source is open. Called by `open_capture`.

        Raises:
            SourceError: the source cannot be opened, or not in time.
        """
        self._send(self._encoder.encode(self._config))
        with anyio.move_on_after(START_TIMEOUT_S) as start:
            assert isinstance(await self._message(), Ready)
        if start.cancelled_caught:
            raise SourceError(SourceFault.TIMEOUT, f"the capture process did not start within {START_TIMEOUT_S:g} s")
        await self._opened()

    async def close(self) -> None:
        """End the capture process. Received frames stay valid."""
        self._releases.close()
        self._read_log()
        # The memory is unmapped with the last frame that is still in use. Without this line, an exception that refers
        # to this capture would keep the memory and its descriptor until the camera's next attempt.
        self._slots = None
        await self._process.stop()

    async def _opened(self) -> None:
        timeout_s = self._config.connect_timeout_s
        with anyio.move_on_after(timeout_s + _GRACE_S):
            message = await self._message()
            assert isinstance(message, Opened)
            self.info = message.info
            return
        self._read_log()
        raise SourceError(SourceFault.TIMEOUT, f"the source did not open within {timeout_s:g} s")

    async def _message(self) -> FromChild:
        await anyio.lowlevel.checkpoint()
        while True:
            received = self._process.receive()
            self._read_log()  # even if more messages wait: lines printed before a frame are handled before it
            if received is None:
                await self._process.readable()
                continue
            packet, fd = received
            if not packet:
                raise await self._crashed()
            message = self._decoder.decode(packet)
            if isinstance(message, Failed):
                self.ended = message.counts
                raise await self._explained(message)
            if not isinstance(message, FrameMemory):
                return message
            self._map(message, fd)

    def _map(self, memory: FrameMemory, fd: int | None) -> None:
        if fd is None:  # the kernel drops the descriptor if this process has reached its limit
            raise SourceError(SourceFault.CRASHED, "its frame memory cannot be received: too many open files")
        try:
            self._slots = SlotReader(memory, fd, self._releases.send)
        except OSError as exc:
            raise SourceError(SourceFault.CRASHED, f"its frame memory cannot be mapped: {exc.strerror}") from exc
        finally:
            os.close(fd)

    def _captured(self, ready: FrameReady) -> CapturedFrame:
        assert self._slots is not None
        assert self._slots.generation == ready.generation
        return CapturedFrame(
            pixels=self._slots.lend(ready.slot, (ready.height, ready.width, 3)),
            source_seq=ready.source_seq,
            capture_unix_ns=ready.capture_unix_ns,
            capture_monotonic_ns=ready.capture_monotonic_ns,
            pts_ns=ready.pts_ns,
            skipped=ready.skipped,
            failed=ready.failed,
            crop=ready.crop,
        )

    def _send_release(self, generation: int, slot: int) -> None:
        self._process.send(self._encoder.encode(Release(generation, slot)))

    def _send(self, packet: bytes) -> None:
        try:
            self._process.send(packet)
        except OSError:
            return  # the process is gone, which the next receive explains

    def _read_log(self) -> None:
        for line in self._process.lines():
            masked = mask(line, self._config.source)
            self._lines.append(masked)
            self._on_log(masked)

    async def _explained(self, failed: Failed) -> SourceError:
        await self._process.exit_status(_GRACE_S)  # after its exit all its output is available
        self._read_log()
        if failed.guess is None:
            return SourceError(failed.fault, failed.message)
        fault, reason = classify(self._lines) or (failed.fault, failed.guess)
        return SourceError(fault, f"{failed.message}: {reason}")

    async def _crashed(self) -> SourceError:
        status = await self._process.exit_status(_GRACE_S)
        self._read_log()
        if status is not None and status < 0:
            end = f"was killed by {signal.Signals(-status).name}"
        else:
            end = f"exited unexpectedly (status {status})"
        last = f"; its last line was: {self._lines[-1]}" if self._lines else ""
        return SourceError(SourceFault.CRASHED, f"the capture process {end}{last}")


def ignore_log(line: str) -> None:
    """Ignore a log line."""


@asynccontextmanager
async def open_capture(config: CameraConfig, on_log: OnLog = ignore_log) -> AsyncIterator[Capture]:
    """Open a source in a capture process of its own. The process ends with the context: within 0.3 s, even when busy.

    Args:
        config: the camera; its source is sent to the process as a message, not as an argument.
        on_log: called with each line that the process and its libraries print, without secrets.

    Raises:
        SourceError: the source cannot be opened; `fault` and message say why and what to do.
    """
    try:
        process = CaptureProcess(config.name)
    except OSError as exc:
        raise SourceError(SourceFault.CRASHED, f"the capture process cannot be started: {exc.strerror}") from exc
    capture = Capture(process, config, on_log)
    try:
        await capture.connect()
        yield capture
    finally:
        await capture.close()


async def probe(config: CameraConfig) -> SourceInfo | SourceError:
    """Open a source, read one frame and close it, within its connect and stall timeouts.

    Returns:
        The source's properties, with the size of the frame; or why it cannot be read.
    """
    try:
        async with open_capture(config) as capture:
            with anyio.move_on_after(config.stall_timeout_s):
                captured = await capture.receive()
                if captured is None:
                    return SourceError(SourceFault.UNREADABLE, "none of its frames can be read")
                height, width, _ = captured.pixels.shape
                return replace(capture.info, width=width, height=height)
            return SourceError(SourceFault.STALLED, f"it opened, but sent no frame for {config.stall_timeout_s:g} s")
    except SourceError as exc:
        return exc
