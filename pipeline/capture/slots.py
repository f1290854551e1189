"""Frames in memory that two processes share: the capture process fills slots, the service gives them back."""

import mmap
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from ..frames import Pixels
from .protocol import Memory


class SlotWriter:
    """The capture process's side: slots that are free, and the memory they lie in.

    Memory that is too small for a frame is replaced; slots of the memory before it come back to nobody.

    Args:
        slots: how many frames fit.
        announce: sends a description of new memory and its file descriptor to the reader.
    """

    def __init__(self, slots: int, announce: Callable[[Memory, int], None]) -> None:
        self._slots = slots
        self._announce = announce
        self._generation = -1
        self._slot_bytes = 0
        self._memory: mmap.mmap | None = None
        self._free: list[int] = []

    @property
    def generation(self) -> int:
        """Number of the memory in use."""
        return self._generation

    def reserve(self, nbytes: int) -> None:
        """Make sure that a frame of `nbytes` fits into a slot; may replace the memory."""
        if nbytes <= self._slot_bytes:
            return
        self._slot_bytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._generation += 1
        fd = os.memfd_create("retinad-frames", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, self._slots * self._slot_bytes)
            self._memory = mmap.mmap(fd, 0)
            self._announce(Memory(self._generation, self._slots, self._slot_bytes), fd)
        finally:
            os.close(fd)
        self._free = list(range(self._slots))

    def take(self) -> int | None:
        """A free slot, now the caller's, or None."""
        return self._free.pop() if self._free else None

    def view(self, slot: int, shape: tuple[int, ...]) -> Pixels:
        """The slot's memory as a writable uint8 array of `shape`."""
        assert self._memory is not None
        return np.ndarray(shape, np.uint8, buffer=self._memory, offset=slot * self._slot_bytes)

    def free(self, generation: int, slot: int) -> None:
        """A slot is free again; one of replaced memory is not missed."""
        if generation == self._generation:
            self._free.append(slot)


class SlotReader:
    """The service's side of one memory: hands slots out as arrays, and gives each back when its array is gone.

    Args:
        memory: what the writer announced.
        fd: its file descriptor; stays the caller's.
        release: told the slot that is free again, from whichever thread dropped the last reference.
    """

    def __init__(self, memory: Memory, fd: int, release: Callable[[int, int], None]) -> None:
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
        """Whether every slot is lent out, so that the writer can deliver nothing."""
        return len(self._lent) == self._memory.slots

    def lend(self, slot: int, shape: tuple[int, int, int]) -> Pixels:
        """The slot's frame, read-only. The slot comes back when the array and all views of it are gone.

        Views of an array keep the array itself alive as their base, since its own base, a memory map, is no array.
        """
        pixels = np.ndarray(shape, np.uint8, buffer=self._map, offset=slot * self._memory.slot_bytes)
        self._lent.add(slot)
        weakref.finalize(pixels, self._return, slot).atexit = False
        return pixels

    def _return(self, slot: int) -> None:
        self._lent.discard(slot)
        self._release(self._memory.generation, slot)


class Returns:
    """Sends slots back through a socket from any thread, until it is closed.

    The lock keeps a send from hitting a descriptor that was closed and used again. It is re-entrant, because the
    garbage collector may drop a frame while this very thread holds it.
    """

    def __init__(self, send: Callable[[int, int], None]) -> None:
        self._send: Callable[[int, int], None] | None = send
        self._lock = threading.RLock()

    def release(self, generation: int, slot: int) -> None:
        """Give a slot back; after `close`, nothing happens."""
        with self._lock:
            if self._send is not None:
                with suppress(OSError):  # the capture process is gone, and its slots with it
                    self._send(generation, slot)

    def close(self) -> None:
        """Stop sending, and let go of what sends. Idempotent."""
        with self._lock:
            self._send = None
