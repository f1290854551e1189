"""Files that are there whole or not at all, whenever the process or the machine stops."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"
"""What the name of a file ends in while it is written."""

PRIVATE = 0o600
"""Mode of a file that only its owner can read."""


@contextmanager
def written_whole(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Write a file under another name, then bring it to the disk and rename it over what stood at `path`.

    If the block raises, what stood at `path` still does, and nothing is left beside it.

    Args:
        path: where; the folder exists.
        mode: the new file's permissions, before the process's umask.

    Raises:
        OSError: it cannot be written.
    """
    partial = path.with_name(path.name + PARTIAL)
    # Unlike a name of its own for each try, this one leaves at most one file where a process is killed.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(partial, flags, mode)
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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
