"""Lets commands find a running service and send it requests, through a private folder per service and signals.

The folder, `service-PID` in the runtime folder, holds a locked file for as long as the service lives, copies of the
config as it was started and as it was last reloaded, and the environment that the config was read with. All of it may
contain secrets: only the service's user can read it. This is one of the files that read the process's environment.
"""

import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from retinad.pipeline.files.atomic import PRIVATE, written_whole
from retinad.pipeline.files.lock import take_lock
from retinad.pipeline.files.ownership import check_folder

from ..config.directories import find_directories

SYSTEM_RUNTIME = Path("/run/retinad")
"""The runtime folder of the systemd unit."""

_FOLDER = "service-"
_LOCK, _PLACE, _RENEW = "lock", "place.json", "renew.json"
_STARTED, _CURRENT = "started.toml", "current.toml"
_VARIABLES = ("RETINAD_", "XDG_", "HOME", "RUNTIME_DIRECTORY", "STATE_DIRECTORY", "CACHE_DIRECTORY", "CREDENTIALS_")


@dataclass(frozen=True, slots=True)
class ControlFolder:
    """The service's side of its private folder.

    Attributes:
        folder: the private folder.
    """

    folder: Path

    def reloaded(self, text: str) -> None:
        """Keep the text of the config that has just been loaded. If the disk is full, only this copy is lost."""
        with suppress(OSError), written_whole(self.folder / _CURRENT, PRIVATE) as file:
            file.write(text.encode())

    def take_renewals(self) -> Sequence[str] | None:
        """Return and clear the names of the cameras that a command asked to renew. None means all cameras."""
        path = self.folder / _RENEW
        try:
            names: list[str] = json.loads(path.read_bytes())
            path.unlink()
        except (OSError, ValueError):
            return None
        return names


@contextmanager
def open_control(
    runtime: Path, config: Path, text: str, environment: Mapping[str, str] = os.environ
) -> Iterator[ControlFolder]:
    """Let commands find this service until the context ends. Folders that killed services left behind are removed.

    Args:
        runtime: the runtime folder, which exists.
        config: the config file.
        text: its text, as it was loaded.
        environment: the environment variables that the config was read with.

    Raises:
        OSError: the folder cannot be written.
    """
    for left in runtime.glob(f"{_FOLDER}*"):
        pid = left.name.removeprefix(_FOLDER)
        if pid == str(os.getpid()) or not os.path.exists(f"/proc/{pid}"):  # a service that is starting has no lock yet
            shutil.rmtree(left, ignore_errors=True)
    control = ControlFolder(runtime / f"{_FOLDER}{os.getpid()}")
    control.folder.mkdir(mode=0o700, exist_ok=True)
    lock = take_lock(control.folder / _LOCK)
    try:
        kept = {name: value for name, value in environment.items() if name.startswith(_VARIABLES)}
        place = {"config": os.path.realpath(config), "folder": os.getcwd(), "environment": kept}
        with written_whole(control.folder / _PLACE, PRIVATE) as file:
            file.write(json.dumps(place).encode())
        control.reloaded(text)
        with suppress(OSError):
            shutil.copy(control.folder / _CURRENT, control.folder / _STARTED)
        yield control
    finally:
        shutil.rmtree(control.folder, ignore_errors=True)
        os.close(lock)


@dataclass(frozen=True, slots=True)
class RunningService:
    """A running service, as commands see it.

    Attributes:
        pid: its process id.
        config: its config file.
        working_folder: the folder that relative paths in its config refer to.
        environment: the environment variables that its config was read with.
        started: a copy of the config that it started with.
        current: a copy of the config that it loaded last.
    """

    pid: int
    config: Path
    working_folder: Path
    environment: Mapping[str, str]
    started: Path
    current: Path

    def reload(self) -> None:
        """Ask the service to reload its config."""
        os.kill(self.pid, signal.SIGHUP)

    def renew(self, cameras: Sequence[str], within_s: float = 10.0) -> None:
        """Ask the service to begin new epochs of these cameras' streams, and wait until it has taken the request.

        Without cameras, the streams of all cameras begin new epochs.

        Raises:
            TimeoutError: the service did not take the request in time.
        """
        path = self.started.with_name(_RENEW)
        lock = os.open(self.started.with_name(_LOCK + "-renew"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one request at a time: the service reads one for each signal
            if not cameras:
                os.kill(self.pid, signal.SIGUSR1)
                return
            with written_whole(path, PRIVATE) as file:
                file.write(json.dumps(list(cameras)).encode())
            os.kill(self.pid, signal.SIGUSR1)
            until_s = time.monotonic() + within_s
            while path.exists():
                if time.monotonic() > until_s:
                    path.unlink(missing_ok=True)
                    raise TimeoutError
                time.sleep(0.02)
        finally:
            os.close(lock)


def find_services(environment: Mapping[str, str] = os.environ) -> tuple[list[RunningService], list[Path]]:
    """The running services of this user and of the systemd unit.

    Returns:
        the services, and the runtime folders that were searched.

    Raises:
        OSError: a folder may not be read.
        NotOursError: another user could have made what is in a runtime folder.
    """
    folders = list(dict.fromkeys((find_directories(environment).runtime, SYSTEM_RUNTIME)))
    for runtime in folders:
        if runtime.is_dir() and runtime != SYSTEM_RUNTIME:  # below /run, which only root writes to
            check_folder(runtime)
    found = [_read(folder) for runtime in folders if runtime.is_dir() for folder in _services(runtime)]
    return found, folders


def _services(runtime: Path) -> list[Path]:
    names = sorted(os.listdir(runtime))
    return [runtime / name for name in names if name.startswith(_FOLDER) and _is_alive(runtime / name)]


def _is_its_own(folder: Path) -> bool:
    # Whether the folder, which is no link, belongs to the user of the process that it names. The service's user could
    # otherwise make root send a signal to any process, which ends most of them.
    try:
        status = Path("/proc", folder.name.removeprefix(_FOLDER), "status").read_text()
        return not folder.is_symlink() and f"\nUid:\t{folder.lstat().st_uid}\t" in status
    except OSError:
        return False


def _read(folder: Path) -> RunningService:
    place = json.loads((folder / _PLACE).read_bytes())
    return RunningService(
        pid=int(folder.name.removeprefix(_FOLDER)),
        config=Path(place["config"]),
        working_folder=Path(place["folder"]),
        environment=place["environment"],
        started=folder / _STARTED,
        current=folder / _CURRENT,
    )


def _is_alive(folder: Path) -> bool:
    # The lock ends with the process, whose id may then be given to another. The service takes the lock before it writes
    # its place, so that this look-up cannot disturb it.
    if not (folder / _PLACE).exists() or not _is_its_own(folder):
        return False
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
