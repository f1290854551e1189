"""Says why a file cannot be opened for reading. safetensors itself reports every failure to open as a missing file."""

import os
import stat
from pathlib import Path


def why_unreadable(path: Path) -> str | None:
    """Why this process cannot read a regular file, in words that follow its name and a colon; None if it can.

    Nothing is read, and a pipe or a device does not block.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return f"it may not be read by this user (uid {os.geteuid()}){_rights(path)}"
    except (OSError, ValueError) as error:  # ValueError: a null character
        return getattr(error, "strerror", None) or str(error)
    try:
        return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else "it is not a regular file"
    finally:
        os.close(descriptor)


def _rights(path: Path) -> str:
    try:
        found = os.stat(path)
    except OSError:  # the reason lies further up
        return ": a folder on the way to it is closed to this user"
    return f": its owner is uid {found.st_uid}, its mode {stat.S_IMODE(found.st_mode):04o}"
