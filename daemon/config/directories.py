"""The folders of the service: finds their paths, and creates them without trusting what already exists there."""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from retinad.pipeline.files.lock import HeldError, take_lock
from retinad.pipeline.files.ownership import NotOursError, check_folder, check_way

from ..exit_codes import ExitCode


class DirectoryError(Exception):
    """A folder of the service cannot be used. The message names the folder and the reason.

    Attributes:
        code: the exit code of the process.
    """

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class UnwritableError(DirectoryError):
    """A folder cannot be written to: its file system is full or read-only, or the user has no right to write."""


_UNWRITABLE = frozenset({errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM})


@dataclass(frozen=True, slots=True)
class Directories:
    """The folders of the service.

    Attributes:
        runtime: sockets and locks of the running service. `RUNTIME_DIRECTORY` (set by systemd), else `retinad` in
            `XDG_RUNTIME_DIR`, else `/tmp/retinad-<uid>`.
        state: files that survive a restart. `STATE_DIRECTORY` (set by systemd), else `retinad` in `XDG_STATE_HOME` or
            `~/.local/state`.
        cache: files that can be recreated, such as compiled kernels. `CACHE_DIRECTORY` (set by systemd), else
            `retinad` in `XDG_CACHE_HOME` or `~/.cache`.
    """

    runtime: Path
    state: Path
    cache: Path


def find_directories(environment: Mapping[str, str]) -> Directories:
    """Find the folders from the environment, without creating them."""
    fallback = Path(f"/tmp/retinad-{os.getuid()}")
    home = _first(environment, "HOME")
    xdg_runtime = _first(environment, "XDG_RUNTIME_DIR")
    xdg_state = _first(environment, "XDG_STATE_HOME") or (home / ".local/state" if home else None)
    xdg_cache = _first(environment, "XDG_CACHE_HOME") or (home / ".cache" if home else None)
    return Directories(
        runtime=_first(environment, "RUNTIME_DIRECTORY") or (xdg_runtime / "retinad" if xdg_runtime else fallback),
        state=_first(environment, "STATE_DIRECTORY") or (xdg_state / "retinad" if xdg_state else fallback / "state"),
        cache=_first(environment, "CACHE_DIRECTORY") or (xdg_cache / "retinad" if xdg_cache else fallback / "cache"),
    )


def make_private(directory: Path) -> None:
    """Create a folder that only this user can enter, and its parents; an existing one must be this user's own.

    The check matters in `/tmp`, where anyone may have created a folder or a link of this name first.

    Raises:
        UnwritableError: it cannot be created or written to.
        DirectoryError: it is not a folder, belongs to another user, or others can replace it.
    """
    try:
        _make_folders(directory)
        check_folder(directory)
    except NotOursError as error:
        raise DirectoryError(ExitCode.NO_PERMISSION, str(error)) from error
    except OSError as error:
        raise _failure(f"the folder {directory} cannot be created", error) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UnwritableError(ExitCode.CANNOT_CREATE, f"the folder {directory} cannot be written to")


def check_private(directory: Path) -> None:
    """Find out, without creating anything, whether `make_private` would refuse a folder.

    Raises:
        DirectoryError: it would.
    """
    existing = directory
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    try:
        check_way(directory)
        if existing == directory:
            check_folder(directory)
        elif not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{existing} is not a folder")
    except NotOursError as error:
        raise DirectoryError(ExitCode.NO_PERMISSION, str(error)) from error
    except OSError as error:
        raise _failure(f"the folder {directory} cannot be created", error) from error


def _make_folders(directory: Path) -> None:
    check_way(directory)
    for folder in reversed(directory.parents):
        if not folder.exists():
            folder.mkdir(mode=0o755)  # not by `parents=True`, which leaves the mode to the umask alone
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Lock a folder against every other service, until this context or the process ends.

    Args:
        directory: the folder that only one service may write to; the lock file is beside it, in a folder that exists.

    Raises:
        UnwritableError: the lock file cannot be written.
        DirectoryError: another process, named in the message, holds the lock, or the folder cannot be locked.
    """
    try:
        descriptor = take_lock(directory.with_name(f"{directory.name}.lock"))
    except HeldError as error:
        advice = "a second service needs its own state_dir, or keep_state = false"
        reason = f"the folder {directory} is in use: {error} saves its streams there; {advice}"
        raise DirectoryError(ExitCode.UNAVAILABLE, reason) from error
    except NotOursError as error:
        raise DirectoryError(ExitCode.NO_PERMISSION, f"the folder {directory} cannot be locked: {error}") from error
    except OSError as error:
        raise _failure(f"the folder {directory} cannot be locked", error) from error
    try:
        yield
    finally:
        os.close(descriptor)


def writing_problem(directory: Path) -> str | None:
    """Why a folder, which need not exist yet, cannot be written to; None if no reason is found without writing."""
    existing = directory
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not os.path.isdir(existing):
        return f"{existing} is not a folder"
    try:
        system = os.statvfs(existing)
    except OSError as error:
        return f"{existing} cannot be reached: {error.strerror}"
    if system.f_flag & os.ST_RDONLY:
        return f"{existing} is on a read-only file system"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"this user may not write to {existing}"
    if system.f_blocks and not system.f_bavail:
        return f"the file system of {existing} is full"
    return None


def _failure(message: str, error: OSError) -> DirectoryError:
    kind = UnwritableError if error.errno in _UNWRITABLE else DirectoryError
    # An error without an errno was raised by this project, and its text is complete.
    return kind(ExitCode.CANNOT_CREATE, f"{message}: {error.strerror}" if error.strerror else str(error))


def _first(environment: Mapping[str, str], name: str) -> Path | None:
    first = environment.get(name, "").split(":")[0]
    return Path(first) if first.startswith("/") else None
