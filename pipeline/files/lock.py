"""A lock that a process holds on a file: the kernel lets go of it when the process ends, however that happens."""

import fcntl
import os
from pathlib import Path


class HeldError(Exception):
    """Another process holds the lock; the message is its name, for a sentence: `process 17`."""


def take_lock(path: Path) -> int:
    """Lock a file, which is made if it is not there, without waiting.

    The file must stay when the lock is let go: removing it would let two processes hold locks on two files of one name.

    Returns:
        A descriptor; closing it lets go of the lock.

    Raises:
        HeldError: somebody holds it.
        OSError: the file cannot be made or locked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise HeldError(f"process {holder}" if holder.isdigit() else "another process") from error
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
