"""The event loop's side of a capture process: opens a source, receives its frames, and explains failures."""

import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

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
from .protocol import Ended, Failed, FrameMemory, FrameReady, FromChild, Opened, Ready, Release, Rewind, Start
from .slots import ReleaseSender, SlotReader

START_TIMEOUT_S = 30.0
"""Time limit, in seconds, for a capture process to load its libraries. Loading takes 0.2 s on an idle machine."""
GOODBYE_S = 0.8
"""Time limit, in seconds, for a process to close a source that delivers frames. Closing it ends a camera's RTSP session
(TEARDOWN).
"""
GRACE_S = 0.25
"""Seconds by which the timeouts inside the capture process are shorter than those of the service: if they expire first,
the process reports a reason and can be kept."""
_LINES_KEPT = 20
_MOST_OPENINGS = 100
"""Maximum number of times that one process opens its source, so that library leaks do not add up over months."""

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
        skipped: number of frames captured and discarded since the previous one, because no slot was free.
        failed: number of frames since the previous one that could not be decoded.
        crop: where the pixels are in the captured frame, or None if the frame is not cropped.
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
    """A source and its capture process. Created by `open_capture` or `start_capture`.

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
        self._loaded = False
        self._delivers = False
        self._waits = False
        self._openings = 0
        self._decoder = msgspec.msgpack.Decoder(FromChild)
        self._encoder = msgspec.msgpack.Encoder()
        self._slots: SlotReader | None = None
        self._releases = ReleaseSender(self._send_release)

    @property
    def pid(self) -> int:
        """Process id of the capture process."""
        return self._process.pid

    @property
    def reusable(self) -> bool:
        """Whether the process waits to open the source again, because it reported the end or the failure itself."""
        return self._waits and self._openings < _MOST_OPENINGS

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
            self._waits, self._delivers = True, False
            return None
        assert isinstance(message, FrameReady)
        return self._captured(message)

    async def forward_log(self) -> None:
        """Forward log lines until cancelled, for callers that wait for something other than `receive`."""
        while True:
            await self._process.printed()
            self._read_log()

    def begin(self) -> None:
        """Send the config to the process. Called by `start_capture`."""
        self._send(self._encoder.encode(Start.of(self._config)))

    async def load(self) -> None:
        """Wait until the process has loaded its libraries. Cancelling the call is safe.

        Raises:
            SourceError: the source cannot be read, or the process does not start.
        """
        if self._waits:
            self._waits = False
            self._lines.clear()
            self._send(self._encoder.encode(Rewind()))
        if self._loaded:
            return
        with anyio.move_on_after(START_TIMEOUT_S):
            assert isinstance(await self._message(), Ready)
            self._loaded = True
            return
        raise SourceError(SourceFault.TIMEOUT, f"the capture process did not start within {START_TIMEOUT_S:g} s")

    async def open(self) -> None:
        """Open the source, or reopen it after its end or failure, and update `info`.

        Raises:
            SourceError: the source cannot be opened, or not in time.
        """
        self.ended = None
        self._openings += 1
        await self.load()
        timeout_s = self._config.connect_timeout_s
        with anyio.move_on_after(timeout_s + GRACE_S):
            message = await self._message()
            assert isinstance(message, Opened)
            self.info = message.info
            self._delivers = True
            return
        self._read_log()
        raise SourceError(SourceFault.TIMEOUT, f"the source did not open within {timeout_s:g} s")

    async def rewind(self) -> None:
        """Open a source that has ended for its next pass. See `open`."""
        assert self.ended is not None
        await self.open()

    async def close(self) -> None:
        """End the capture process. Received frames stay valid."""
        self._releases.close()
        self._read_log()
        # The memory is unmapped with the last frame that is still in use. Without this line, an exception that refers
        # to this capture would keep the memory and its descriptor until the camera's next attempt.
        self._slots = None
        await self._process.stop(GOODBYE_S if self._delivers else 0.0)

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
                raise self._explained(message)
            if not isinstance(message, FrameMemory):
                return message
            self._map(message, fd)

    def _map(self, memory: FrameMemory, fd: int | None) -> None:
        if fd is None:  # the kernel drops the descriptor if this process has reached its limit
            raise SourceError(
                SourceFault.CRASHED,
                "the memory for its frames cannot be received: this process has too many open files (ulimit -n)",
            )
        try:
            self._slots = SlotReader(memory, fd, self._releases.send)
        except OSError as exc:
            raise SourceError(
                SourceFault.CRASHED, f"the memory for its frames cannot be mapped: {exc.strerror}"
            ) from exc
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

    def _explained(self, failed: Failed) -> SourceError:
        self._waits, self._delivers = True, False
        self._read_log()  # all that was printed before the failure is available
        if failed.guess is None:
            return SourceError(failed.fault, failed.message)
        fault, reason = classify(self._lines) or (failed.fault, failed.guess)
        return SourceError(fault, f"{failed.message}: {reason}")

    async def _crashed(self) -> SourceError:
        status = await self._process.exit_status(GRACE_S)
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
async def start_capture(config: CameraConfig, on_log: OnLog = ignore_log) -> AsyncIterator[Capture]:
    """Start a capture process, which ends with the context: within a second, even when it is stuck.

    Args:
        config: the camera; its source is sent to the process as a message, not as an argument.
        on_log: called with each line that the process and its libraries print, without secrets.

    Raises:
        SourceError: the process cannot be started.
    """
    try:
        process = CaptureProcess(config.name)
    except OSError as exc:
        raise SourceError(SourceFault.CRASHED, f"the capture process cannot be started: {exc.strerror}") from exc
    capture = Capture(process, config, on_log)
    try:
        capture.begin()
        yield capture
    finally:
        await capture.close()


@asynccontextmanager
async def open_capture(config: CameraConfig, on_log: OnLog = ignore_log) -> AsyncIterator[Capture]:
    """Open a source in a capture process of its own; the arguments are those of `start_capture`.

    Raises:
        SourceError: the source cannot be opened; `fault` and message say why and what to do.
    """
    async with start_capture(config, on_log) as capture:
        await capture.open()
        yield capture
