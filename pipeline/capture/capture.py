"""The event loop's view of a capture process: open a source, receive its frames, know why it failed."""

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
from ..frames import Pixels
from ..sources.reader import SourceInfo
from ..sources.redact import mask
from .faults import classify
from .process import CaptureProcess
from .protocol import Ended, Failed, FromChild, Memory, Opened, Picture, Ready, Release, Rewind
from .slots import Returns, SlotReader

START_TIMEOUT_S = 30.0
"""Seconds for a capture process to load its libraries; 0.2 when the machine has nothing else to do."""
_GRACE_S = 0.25  # the capture process's own time-outs come first, since they say why
_LINES_KEPT = 20

OnLog = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """One frame as it comes from a source.

    Attributes:
        pixels: uint8 [height, width, 3], BGR, read-only, in shared memory: its slot is free when the last view is gone.
        source_seq: number within this opening of the source, from 0; skipped and unreadable frames count.
        capture_unix_ns: wall-clock time in nanoseconds.
        capture_monotonic_ns: `CLOCK_MONOTONIC` time in nanoseconds.
        pts_ns: the container's time in nanoseconds, or None.
        skipped: frames captured and discarded since the last one, because no slot was free.
        failed: frames since the last one that could not be decoded.
    """

    pixels: Pixels
    source_seq: int
    capture_unix_ns: int
    capture_monotonic_ns: int
    pts_ns: int | None
    skipped: int = 0
    failed: int = 0


class Capture:
    """An open source. Get it from `open_capture`.

    Attributes:
        info: what the source says of itself.
        ended: the capture process's account at the end of the source, else None.
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
        self._returns = Returns(self._send_release)

    @property
    def pid(self) -> int:
        """The capture process."""
        return self._process.pid

    @property
    def starved(self) -> bool:
        """Whether the source can deliver nothing until a frame that was received is let go."""
        return self._slots is not None and self._slots.exhausted

    async def receive(self) -> Captured | None:
        """The next frame; None once the source has ended. Cancelling it loses no frame.

        Raises:
            SourceError: the source or its process failed.
        """
        if self.ended is not None:
            return None
        message = await self._message()
        if isinstance(message, Ended):
            self._hear()  # all that was printed before it is there
            self.ended = message
            return None
        assert isinstance(message, Picture)
        return self._captured(message)

    async def listen(self) -> None:
        """Hear what is printed until cancelled, for those who wait for something else than `receive`."""
        while True:
            await self._process.printed()
            self._hear()

    async def rewind(self) -> None:
        """Open a source that has ended once more; `info` is new.

        Raises:
            SourceError: it cannot be opened.
        """
        assert self.ended is not None
        self.ended = None
        self._send(self._encoder.encode(Rewind()))
        await self._opened()

    async def connect(self) -> None:
        """Send the config and wait until the source is open. `open_capture` does it.

        Raises:
            SourceError: it cannot be opened, or not in time.
        """
        self._send(self._encoder.encode(self._config))
        with anyio.move_on_after(START_TIMEOUT_S) as start:
            assert isinstance(await self._message(), Ready)
        if start.cancelled_caught:
            raise SourceError(SourceFault.TIMEOUT, f"the capture process did not start within {START_TIMEOUT_S:g} s")
        await self._opened()

    async def close(self) -> None:
        """End the capture process. Frames that were received stay valid."""
        self._returns.close()
        self._hear()
        # The last frame that somebody holds unmaps the memory. Without this an exception that still refers to this
        # capture would keep it, with its descriptor, while the camera waits for its next try.
        self._slots = None
        await self._process.stop()

    async def _opened(self) -> None:
        timeout_s = self._config.connect_timeout_s
        with anyio.move_on_after(timeout_s + _GRACE_S):
            message = await self._message()
            assert isinstance(message, Opened)
            self.info = message.info
            return
        self._hear()
        raise SourceError(SourceFault.TIMEOUT, f"the source did not open within {timeout_s:g} s")

    async def _message(self) -> FromChild:
        await anyio.lowlevel.checkpoint()
        while True:
            received = self._process.receive()
            self._hear()  # though more messages wait: what was printed before a frame is heard before it
            if received is None:
                await self._process.readable()
                continue
            packet, fd = received
            if not packet:
                raise await self._crashed()
            message = self._decoder.decode(packet)
            if isinstance(message, Failed):
                raise await self._explained(message)
            if not isinstance(message, Memory):
                return message
            self._map(message, fd)

    def _map(self, memory: Memory, fd: int | None) -> None:
        if fd is None:  # the kernel drops it where this process may not have one more
            raise SourceError(SourceFault.CRASHED, "its frames' memory did not arrive: too many open files")
        try:
            self._slots = SlotReader(memory, fd, self._returns.release)
        except OSError as exc:
            raise SourceError(SourceFault.CRASHED, f"its frames' memory cannot be mapped: {exc.strerror}") from exc
        finally:
            os.close(fd)

    def _captured(self, picture: Picture) -> Captured:
        assert self._slots is not None
        assert self._slots.generation == picture.generation
        return Captured(
            pixels=self._slots.lend(picture.slot, (picture.height, picture.width, 3)),
            source_seq=picture.source_seq,
            capture_unix_ns=picture.capture_unix_ns,
            capture_monotonic_ns=picture.capture_monotonic_ns,
            pts_ns=picture.pts_ns,
            skipped=picture.skipped,
            failed=picture.failed,
        )

    def _send_release(self, generation: int, slot: int) -> None:
        self._process.send(self._encoder.encode(Release(generation, slot)))

    def _send(self, packet: bytes) -> None:
        try:
            self._process.send(packet)
        except OSError:
            return  # it is gone, which the next receive explains

    def _hear(self) -> None:
        for line in self._process.lines():
            masked = mask(line, self._config.source)
            self._lines.append(masked)
            self._on_log(masked)

    async def _explained(self, failed: Failed) -> SourceError:
        await self._process.exit_status(_GRACE_S)  # then all it printed has arrived
        self._hear()
        if failed.guess is None:
            return SourceError(failed.fault, failed.message)
        fault, reason = classify(self._lines) or (failed.fault, failed.guess)
        return SourceError(fault, f"{failed.message}: {reason}")

    async def _crashed(self) -> SourceError:
        status = await self._process.exit_status(_GRACE_S)
        self._hear()
        if status is not None and status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
        else:
            how = f"ended unexpectedly (status {status})"
        last = f"; its last line was: {self._lines[-1]}" if self._lines else ""
        return SourceError(SourceFault.CRASHED, f"the capture process {how}{last}")


def ignore_log(line: str) -> None:
    """Does nothing with a line."""


@asynccontextmanager
async def open_capture(config: CameraConfig, on_log: OnLog = ignore_log) -> AsyncIterator[Capture]:
    """Open a source in a capture process of its own, which ends with the context: within 0.3 s, whatever it is doing.

    Args:
        config: the camera; its source goes to the process as a message, not as an argument.
        on_log: told each line that the process and its libraries print, without secrets.

    Raises:
        SourceError: the source cannot be opened; `fault` and message say why and what to do.
    """
    try:
        process = CaptureProcess(config.name)
    except OSError as exc:
        raise SourceError(SourceFault.CRASHED, f"no capture process can be started: {exc.strerror}") from exc
    capture = Capture(process, config, on_log)
    try:
        await capture.connect()
        yield capture
    finally:
        await capture.close()


async def probe(config: CameraConfig) -> SourceInfo | SourceError:
    """Open a source, read one frame and close it, within its connect and stall timeouts.

    Returns:
        What it is, with the size of the frame; or why it cannot be read.
    """
    try:
        async with open_capture(config) as capture:
            with anyio.move_on_after(config.stall_timeout_s):
                captured = await capture.receive()
                if captured is None:
                    return SourceError(SourceFault.UNREADABLE, "the source has not a single readable frame")
                height, width, _ = captured.pixels.shape
                return replace(capture.info, width=width, height=height)
            return SourceError(SourceFault.STALLED, f"it opened, but sent no frame in {config.stall_timeout_s:g} s")
    except SourceError as exc:
        return exc
