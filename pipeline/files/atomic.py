"""Atomic file writes: whenever the process or the machine stops, a file is either written completely or unchanged."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"
"""Suffix of the temporary name of a file that is being written."""

PRIVATE = 0o600
"""Mode of a file that only its owner can read and write."""


@contextmanager
def written_whole(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Write a file under a temporary name, then flush it to the disk and rename it to `path`.

    If the block raises, an existing file at `path` is unchanged, and no temporary file is left.

    Args:
        path: path of the file; its folder must exist.
        mode: the new file's permissions, before the process's umask.

    Raises:
        OSError: the file cannot be written.
    """
    partial = path.with_name(path.name + PARTIAL)
    # The temporary name is always the same, so that killed processes leave at most one temporary file.
    descriptor = _open_new(partial, mode)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    _sync_folder(path.parent)


def try_writing(path: Path) -> None:
    """Check that a file can be written, before starting the work whose result it will hold. Changes nothing.

    Raises:
        OSError: the file cannot be written.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        return
    partial = path.with_name(path.name + PARTIAL)
    os.close(_open_new(partial, PRIVATE))
    partial.unlink()


def _open_new(path: Path, mode: int) -> int:
    # A file that is there already is never opened: in a shared folder another user may have made it, who could then
    # change what is written, or have given a second name to a file of this user's, which would be emptied.
    with suppress(FileNotFoundError):
        path.unlink()
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
