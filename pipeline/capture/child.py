"""The capture process: reads one source and writes its frames to shared memory.

It is a process of its own because the libraries that it calls may block indefinitely, crash, or hold FFmpeg's
process-wide lock: then it is killed, and no other camera notices. The first message that it receives is the camera's
config, so that no secret is in its arguments or environment.
"""

import ctypes
import os
import select
import signal
import socket
import sys
import time
from contextlib import closing, suppress

import msgspec
import numpy as np

from ..config import CaptureMode
from ..errors import SourceError, SourceFault
from ..frames import CropPlace
from ..sources.crop import cropped
from ..sources.reader import Grabbed, Reader, RefusedError, UnreadableImage
from ..sources.redact import mask, printable
from ..sources.registry import load_reader
from .pacing import SECOND_NS, Pacer
from .protocol import (
    MAX_PACKET_BYTES,
    CaptureMessage,
    Ended,
    Failed,
    FrameMemory,
    FrameReady,
    FromParent,
    Opened,
    Ready,
    Release,
    Rewind,
    Start,
)
from .slots import SlotWriter

EXTRA_SLOTS = 2
"""Number of slots besides those of queued frames and frames in the model: one being filled, one being handed over."""
_PR_SET_PDEATHSIG = 1


class ParentGone(Exception):
    """The service closed its end of the socket, so nobody reads the frames."""


class ParentChannel:
    """The child's end of the socket pair, and the slots that are released through it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()  # select.select takes no descriptor above 1023
        self._poll.register(sock, select.POLLIN)
        self._decoder = msgspec.msgpack.Decoder(FromParent)
        self._encoder = msgspec.msgpack.Encoder()
        self._rewound = False
        self.config = msgspec.msgpack.decode(self._packet(), type=Start).camera
        self.slots = SlotWriter(self.config.waiting_frames + self.config.frames_per_step + EXTRA_SLOTS, self._announce)

    def send(self, message: CaptureMessage) -> None:
        """Send a message to the service."""
        try:
            self._sock.send(self._encoder.encode(message))
        except OSError as exc:
            raise ParentGone from exc

    def pump(self, timeout_s: float | None = 0.0) -> None:
        """Handle the service's messages. If there is none, wait up to `timeout_s` for one (None: indefinitely).

        Raises:
            ParentGone: the service closed its end.
        """
        while self._poll.poll(None if timeout_s is None else timeout_s * 1000):
            match self._decoder.decode(self._packet()):
                case Release(generation, slot):
                    self.slots.free(generation, slot)
                case Rewind():
                    self._rewound = True
            timeout_s = 0.0

    def pause(self, seconds: float) -> None:
        """Sleep while handling the service's messages."""
        end = time.monotonic() + seconds
        while (remaining_s := end - time.monotonic()) > 0:
            self.pump(remaining_s)

    def await_rewind(self) -> None:
        """Wait until the service asks to open the source again, after its end or a failure."""
        while not self._rewound:
            self.pump(None)
        self._rewound = False

    def _packet(self) -> bytes:
        try:
            packet = self._sock.recv(MAX_PACKET_BYTES)
        except OSError as exc:
            raise ParentGone from exc
        if not packet:
            raise ParentGone
        return packet

    def _announce(self, memory: FrameMemory, fd: int) -> None:
        try:
            socket.send_fds(self._sock, [self._encoder.encode(memory)], [fd])
        except OSError as exc:
            raise ParentGone from exc


class CaptureLoop:
    """Delivers the frames of one pass through an open source."""

    def __init__(self, parent: ParentChannel, reader: Reader, pacer: Pacer) -> None:
        self._parent = parent
        self._reader = reader
        self._slots = parent.slots
        self._waits = parent.config.mode is CaptureMode.LOSSLESS
        self._pacer = pacer
        self._crop = parent.config.crop
        self._shape: tuple[int, ...] | None = None
        if self._crop is not None:
            self._shape = (self._crop[3], self._crop[2], 3)
        elif reader.info.width and reader.info.height:
            self._shape = (reader.info.height, reader.info.width, 3)
        self._frames = self._skipped = self._failed = self._left_out = 0
        self._is_empty = True
        self._unreadable: str | None = None

    @property
    def counts(self) -> Ended:
        """The total number of frames, and the numbers of those skipped and failed since the last delivered frame."""
        return Ended(self._frames + self._left_out, self._skipped, self._failed)

    def run(self) -> None:
        """Deliver every frame, then report the end of the source.

        Raises:
            SourceError: the source failed, or none of its frames can be read (fault `UNREADABLE`).
        """
        while (grabbed := self._reader.grab()) is not None:
            self._parent.pump()
            self._failed += grabbed.lost
            self._frames += grabbed.lost
            wait_ns = self._pacer.wait_ns(time.monotonic_ns(), grabbed.pts_ns)
            if wait_ns is None:
                self._left_out += 1
                continue
            if wait_ns:
                self._parent.pause(wait_ns / SECOND_NS)
            self._deliver(grabbed)
            self._frames += 1
        if self._is_empty and self._unreadable is not None:
            reason = f"none of its frames can be read; of the last one: {self._unreadable}"
            raise SourceError(SourceFault.UNREADABLE, reason)
        self._parent.send(self.counts)

    def _deliver(self, grabbed: Grabbed) -> None:
        unix_ns, monotonic_ns = _instant(grabbed)
        slot = self._free_slot()
        if slot is None:
            self._skipped += 1
            return
        try:
            slot, (height, width, _), place = self._fill(slot)
        except UnreadableImage as exc:
            self._slots.free(self._slots.generation, slot)
            self._failed += 1
            self._unreadable = str(exc)
            sys.stderr.write(printable(f"left out: {exc}\n"))
            return
        except SourceError:  # the process, and its slots, are used again
            self._slots.free(self._slots.generation, slot)
            raise
        ready = FrameReady(
            generation=self._slots.generation,
            slot=slot,
            height=height,
            width=width,
            source_seq=self._frames,
            capture_unix_ns=unix_ns,
            capture_monotonic_ns=monotonic_ns,
            pts_ns=grabbed.pts_ns,
            skipped=self._skipped,
            failed=self._failed,
            crop=place,
        )
        self._skipped = self._failed = 0
        self._is_empty = False
        self._parent.send(ready)

    def _free_slot(self) -> int | None:
        self._slots.reserve(int(np.prod(self._shape or (1,))))
        while (slot := self._slots.take()) is None and self._waits:
            self._parent.pump(None)
        return slot

    def _fill(self, slot: int) -> tuple[int, tuple[int, ...], CropPlace | None]:
        place: CropPlace | None = None
        if self._crop is not None:
            pixels, place = cropped(self._reader.retrieve(None), self._crop, self._reader.info)
            out = None
        else:
            out = None if self._shape is None else self._slots.view(slot, self._shape)
            pixels = self._reader.retrieve(out)
        self._shape = pixels.shape
        if pixels is out:
            return slot, pixels.shape, place
        generation = self._slots.generation
        self._slots.reserve(pixels.nbytes)
        if self._slots.generation != generation:
            fresh = self._slots.take()
            assert fresh is not None
            slot = fresh
        np.copyto(self._slots.view(slot, pixels.shape), pixels)
        return slot, pixels.shape, place


def _instant(grabbed: Grabbed) -> tuple[int, int]:
    # Wall-clock and monotonic time of capture.
    unix_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
    if grabbed.monotonic_ns is None:
        return unix_ns, monotonic_ns
    return unix_ns - (monotonic_ns - grabbed.monotonic_ns), grabbed.monotonic_ns


def main() -> None:
    """Serve the socket whose descriptor is the first argument, until the service closes its end."""
    _die_with_parent()
    with socket.socket(fileno=int(sys.argv[1])) as sock, suppress(ParentGone):
        _serve(ParentChannel(sock))
    os._exit(0)  # the source is closed; the interpreter's own shutdown takes longer than the service waits


def _serve(parent: ParentChannel) -> None:
    opener = None
    pacer: Pacer | None = None  # one pacer for all passes, since the rate cap and the pace apply across passes
    while True:
        loop: CaptureLoop | None = None
        try:
            if opener is None:
                opener = load_reader(parent.config)
                parent.send(Ready())
            with closing(opener()) as reader:
                parent.send(Opened(reader.info))
                if pacer is None:
                    pacer = Pacer(reader.info, parent.config)
                else:
                    pacer.next_pass(reader.info)
                loop = CaptureLoop(parent, reader, pacer)
                loop.run()
        except SourceError as exc:
            guess = exc.guess if isinstance(exc, RefusedError) else None
            counts = None if loop is None else loop.counts
            parent.send(Failed(exc.fault, mask(str(exc), parent.config.source), guess, counts))
        parent.await_rewind()


def _die_with_parent() -> None:
    # The kernel kills this process when the thread that started it ends. If it has ended already, the socket is closed.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
