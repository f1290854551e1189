"""The capture process: reads one source and lays its frames into shared memory.

A process, because what it calls may block for ever, crash, or hold FFmpeg's process-wide lock: then it is killed, and
no other camera notices. Its first message is the camera's config, so that no secret is in its arguments or environment.
"""

import ctypes
import select
import signal
import socket
import sys
import time
from contextlib import closing

import msgspec
import numpy as np

from ..config import CameraConfig, CaptureMode
from ..errors import SourceError
from ..sources.open import load_reader
from ..sources.reader import Grabbed, Reader, RefusedError, UnreadableImage
from ..sources.redact import mask
from .pacing import SECOND_NS, Pacer
from .protocol import MESSAGE_BYTES, Ended, Failed, FromParent, Memory, Message, Opened, Picture, Ready, Release, Rewind
from .slots import SlotWriter

EXTRA_SLOTS = 2
"""Beyond those that wait in the queue and those with the model: one being filled, one being handed over."""
_PR_SET_PDEATHSIG = 1


class ParentGone(Exception):
    """The service closed its end: there is nobody to read frames."""


class ParentChannel:
    """The child's end of the socket pair, and the slots that come back through it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()  # select.select takes no descriptor above 1023
        self._poll.register(sock, select.POLLIN)
        self._decoder = msgspec.msgpack.Decoder(FromParent)
        self._encoder = msgspec.msgpack.Encoder()
        self._rewound = False
        self.config = msgspec.msgpack.decode(self._packet(), type=CameraConfig)
        self.slots = SlotWriter(self.config.waiting_frames + self.config.frames_per_step + EXTRA_SLOTS, self._announce)

    def send(self, message: Message) -> None:
        """Send a message to the service."""
        try:
            self._sock.send(self._encoder.encode(message))
        except OSError as exc:
            raise ParentGone from exc

    def pump(self, timeout_s: float | None = 0.0) -> None:
        """Take what the service sent; wait for something at most `timeout_s` (None: for ever).

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
        """Let time pass, taking what the service sends."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.pump(left)

    def await_rewind(self) -> None:
        """Wait until the source is wanted once more."""
        while not self._rewound:
            self.pump(None)
        self._rewound = False

    def _packet(self) -> bytes:
        try:
            packet = self._sock.recv(MESSAGE_BYTES)
        except OSError as exc:
            raise ParentGone from exc
        if not packet:
            raise ParentGone
        return packet

    def _announce(self, memory: Memory, fd: int) -> None:
        try:
            socket.send_fds(self._sock, [self._encoder.encode(memory)], [fd])
        except OSError as exc:
            raise ParentGone from exc


class CaptureLoop:
    """One pass through an open source."""

    def __init__(self, parent: ParentChannel, reader: Reader) -> None:
        self._parent = parent
        self._reader = reader
        self._slots = parent.slots
        self._waits = parent.config.mode is CaptureMode.LOSSLESS
        self._pacer = Pacer(reader.info, parent.config)
        self._shape: tuple[int, ...] | None = None
        if reader.info.width and reader.info.height:
            self._shape = (reader.info.height, reader.info.width, 3)
        self._frames = self._skipped = self._failed = 0

    def run(self) -> None:
        """Deliver every frame, then say that the source ended."""
        while (grabbed := self._reader.grab()) is not None:
            self._parent.pump()
            self._failed += grabbed.lost
            self._frames += grabbed.lost
            wait_ns = self._pacer.wait_ns(time.monotonic_ns(), grabbed.pts_ns)
            if wait_ns is None:
                continue
            if wait_ns:
                self._parent.pause(wait_ns / SECOND_NS)
            self._deliver(grabbed)
            self._frames += 1
        self._parent.send(Ended(self._frames, self._skipped, self._failed))

    def _deliver(self, grabbed: Grabbed) -> None:
        unix_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        slot = self._free_slot()
        if slot is None:
            self._skipped += 1
            return
        try:
            slot, (height, width, _) = self._fill(slot)
        except UnreadableImage as exc:
            self._slots.free(self._slots.generation, slot)
            self._failed += 1
            sys.stderr.write(f"left out: {exc}\n")
            return
        picture = Picture(
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
        )
        self._skipped = self._failed = 0
        self._parent.send(picture)

    def _free_slot(self) -> int | None:
        self._slots.reserve(int(np.prod(self._shape or (1,))))
        while (slot := self._slots.take()) is None and self._waits:
            self._parent.pump(None)
        return slot

    def _fill(self, slot: int) -> tuple[int, tuple[int, ...]]:
        out = None if self._shape is None else self._slots.view(slot, self._shape)
        pixels = self._reader.retrieve(out)
        self._shape = pixels.shape
        if pixels is out:
            return slot, pixels.shape
        generation = self._slots.generation
        self._slots.reserve(pixels.nbytes)
        if self._slots.generation != generation:
            fresh = self._slots.take()
            assert fresh is not None
            slot = fresh
        np.copyto(self._slots.view(slot, pixels.shape), pixels)
        return slot, pixels.shape


def main() -> None:
    """Serve the socket whose descriptor is the first argument, until the source fails or the service goes."""
    _die_with_parent()
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        try:
            _serve(ParentChannel(sock))
        except ParentGone:
            return


def _serve(parent: ParentChannel) -> None:
    try:
        opener = load_reader(parent.config)
        parent.send(Ready())
        while True:
            with closing(opener()) as reader:
                parent.send(Opened(reader.info))
                CaptureLoop(parent, reader).run()
            parent.await_rewind()
    except SourceError as exc:
        guess = exc.guess if isinstance(exc, RefusedError) else None
        parent.send(Failed(exc.fault, mask(str(exc), parent.config.source), guess))


def _die_with_parent() -> None:
    # The kernel kills this process when the thread that started it ends. Had it ended before, the socket is closed.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
