"""Where the service keeps its files, and how it makes these folders without trusting what stands there already."""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from retinad.pipeline.files.lock import HeldError, take_lock


class DirectoryError(Exception):
    """A folder of the service cannot be used."""


@dataclass(frozen=True, slots=True)
class Directories:
    """Where the service keeps things.

    Attributes:
        runtime: sockets and locks; gone when the service stops. `RUNTIME_DIRECTORY` (set by systemd), else `retinad` in
            `XDG_RUNTIME_DIR`, else `/tmp/retinad-<uid>`.
        state: what survives a restart. `STATE_DIRECTORY` (set by systemd), else `retinad` in `XDG_STATE_HOME` or
            `~/.local/state`.
        cache: what can be made again, such as compiled kernels. `CACHE_DIRECTORY` (set by systemd), else `retinad` in
            `XDG_CACHE_HOME` or `~/.cache`.
    """

    runtime: Path
    state: Path
    cache: Path


def find_directories(environment: Mapping[str, str]) -> Directories:
    """The directories as the environment gives them; makes none."""
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
    """Make a folder, and those above it, for this user alone; one that is there already must be this user's.

    The check is for `/tmp`, where anyone may have made a folder or a link of this name first.

    Raises:
        DirectoryError: it cannot be made, or it is somebody else's, or not a folder; the message says which.
    """
    try:
        directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        found = directory.lstat()
    except OSError as error:
        raise DirectoryError(f"the folder {directory} cannot be made: {error.strerror}") from error
    # With DynamicUser systemd makes a link, which is root's, to the folder itself.
    if not stat.S_ISDIR(found.st_mode) and not (stat.S_ISLNK(found.st_mode) and found.st_uid == 0):
        raise DirectoryError(f"{directory} is not a folder")
    if found.st_uid not in (0, os.getuid()):
        raise DirectoryError(f"the folder {directory} belongs to another user (uid {found.st_uid})")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise DirectoryError(f"the folder {directory} cannot be written to")


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Keep a folder from every other service until this ends, or the process does.

    Args:
        directory: what only one service may write to; the lock file is beside it, in a folder that exists.

    Raises:
        DirectoryError: another process holds it, which the message names, or it cannot be locked.
    """
    try:
        descriptor = take_lock(directory.with_name(f"{directory.name}.lock"))
    except HeldError as error:
        advice = "a second service needs a state_dir of its own, or keep_state = false"
        raise DirectoryError(f"the folder {directory} is in use: {error} keeps its memories there; {advice}") from error
    except OSError as error:
        raise DirectoryError(f"the folder {directory} cannot be locked: {error.strerror}") from error
    try:
        yield
    finally:
        os.close(descriptor)


def _first(environment: Mapping[str, str], name: str) -> Path | None:
    first = environment.get(name, "").split(":")[0]
    return Path(first) if first.startswith("/") else None
