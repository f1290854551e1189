"""Lock files. The kernel releases a lock when the process that holds it ends, however that happens."""

import errno
import fcntl
import os
import stat
from pathlib import Path

from .ownership import NotOursError, check_made_by_us


class HeldError(Exception):
    """Another process holds the lock. The message names that process, for use in a sentence: `process 17`."""


def take_lock(path: Path) -> int:
    """Lock a file without waiting. The file is created if it does not exist.

    The file must not be removed when the lock is released: otherwise two processes could hold locks on two different
    files of the same name.

    Returns:
        A descriptor; closing it releases the lock.

    Raises:
        HeldError: another process holds the lock.
        NotOursError: another user made the file, or the path is a link or not a regular file.
        OSError: the file cannot be created or locked.
    """
    descriptor = _open(path)
    try:
        check_made_by_us(path, os.fstat(descriptor), stat.S_IFREG)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise HeldError(f"process {holder}" if holder.isdigit() else "another process") from error
    except (NotOursError, OSError):
        os.close(descriptor)
        raise
    return descriptor


def _open(path: Path) -> int:
    # Only the owner may open the file, because everyone who can open it, even for reading, can hold its lock.
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise NotOursError(
                f"{path} is not a plain file (it is a link, has a second name, or is another type): remove it"
            ) from error
        if error.errno == errno.EACCES and os.path.lexists(path):
            check_made_by_us(path, path.lstat(), stat.S_IFREG)
        raise
