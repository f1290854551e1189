"""Frame slots in shared memory: the capture process fills them, the service releases them."""

import mmap
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from ..frames import Pixels
from .protocol import FrameMemory


class SlotWriter:
    """The capture process's side: the memory and its free slots.

    Memory that is too small for a frame is replaced; slots of replaced memory are not reused.

    Args:
        slots: number of frames that fit into the memory.
        announce: sends a description of new memory and its file descriptor to the reader.
    """

    def __init__(self, slots: int, announce: Callable[[FrameMemory, int], None]) -> None:
        self._slots = slots
        self._announce = announce
        self._generation = -1
        self._slot_bytes = 0
        self._memory: mmap.mmap | None = None
        self._free: list[int] = []

    @property
    def generation(self) -> int:
        """Number of the current memory, which is one higher after each replacement."""
        return self._generation

    def reserve(self, nbytes: int) -> None:
        """Make sure that a frame of `nbytes` bytes fits into a slot. May replace the memory."""
        if nbytes <= self._slot_bytes:
            return
        self._slot_bytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._generation += 1
        fd = os.memfd_create("retinad-frames", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, self._slots * self._slot_bytes)
            self._memory = mmap.mmap(fd, 0)
            self._announce(FrameMemory(self._generation, self._slots, self._slot_bytes), fd)
        finally:
            os.close(fd)
        self._free = list(range(self._slots))

    def take(self) -> int | None:
        """Take a free slot; None if there is none."""
        return self._free.pop() if self._free else None

    def view(self, slot: int, shape: tuple[int, ...]) -> Pixels:
        """The slot's memory as a writable uint8 array of `shape`."""
        assert self._memory is not None
        return np.ndarray(shape, np.uint8, buffer=self._memory, offset=slot * self._slot_bytes)

    def free(self, generation: int, slot: int) -> None:
        """Make a slot available again. A slot of replaced memory is ignored."""
        if generation == self._generation:
            self._free.append(slot)


class SlotReader:
    """The service's side of one memory: lends slots as arrays, and releases each when its array is gone.

    Args:
        memory: as announced by the writer.
        fd: its file descriptor, which the caller still owns.
        release: called with the generation and slot to release, on the thread that dropped the last reference.
    """

    def __init__(self, memory: FrameMemory, fd: int, release: Callable[[int, int], None]) -> None:
        self._memory = memory
        self._map = mmap.mmap(fd, memory.slots * memory.slot_bytes, prot=mmap.PROT_READ)
        self._release = release
        self._lent: set[int] = set()

    @property
    def generation(self) -> int:
        """Number of this memory."""
        return self._memory.generation

    @property
    def exhausted(self) -> bool:
        """Whether every slot is lent, so that the writer cannot deliver a frame."""
        return len(self._lent) == self._memory.slots

    def lend(self, slot: int, shape: tuple[int, int, int]) -> Pixels:
        """The slot's frame, read-only. The slot is released when the array and all views of it are gone.

        A view keeps the array itself alive as its base, since the array's own base is a memory map and not an array.
        """
        pixels = np.ndarray(shape, np.uint8, buffer=self._map, offset=slot * self._memory.slot_bytes)
        self._lent.add(slot)
        weakref.finalize(pixels, self._return, slot).atexit = False
        return pixels

    def _return(self, slot: int) -> None:
        self._lent.discard(slot)
        self._release(self._memory.generation, slot)


class ReleaseSender:
    """Sends released slots through a socket from any thread, until it is closed.

    The lock prevents a send to a descriptor that has been closed and reused. It is re-entrant because the garbage
    collector may drop a frame while the same thread holds the lock.
    """

    def __init__(self, send: Callable[[int, int], None]) -> None:
        self._send: Callable[[int, int], None] | None = send
        self._lock = threading.RLock()

    def send(self, generation: int, slot: int) -> None:
        """Release a slot. Does nothing after `close`."""
        with self._lock:
            if self._send is not None:
                with suppress(OSError):  # the capture process is gone, and its slots with it
                    self._send(generation, slot)

    def close(self) -> None:
        """Stop sending, and drop the reference to the sender. Idempotent."""
        with self._lock:
            self._send = None
