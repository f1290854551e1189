"""Lock files: the kernel releases the lock when its process ends, however that happens."""

import fcntl
import os
from pathlib import Path


class HeldError(Exception):
    """Another process holds the lock. The message names it, for use in a sentence: `process 17`."""


def take_lock(path: Path) -> int:
    """Lock a file without waiting. The file is created if it does not exist.

    The file must stay when the lock is released: if it were removed, two processes could hold locks on two files of
    the same name.

    Returns:
        A descriptor; closing it releases the lock.

    Raises:
        HeldError: another process holds the lock.
        OSError: the file cannot be created or locked.
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
