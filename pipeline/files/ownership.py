"""Checks that a file or folder is this user's own, so that nobody else can have put it there or can replace it.

In a shared folder such as `/tmp`, another user may be the first to create a file of a certain name. And the owner of a
folder can replace the files in it, whoever owns them, and so can the owner of any folder above. Root is trusted.
"""

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

_KINDS = MappingProxyType({stat.S_IFDIR: "folder", stat.S_IFREG: "file", stat.S_IFSOCK: "socket", stat.S_IFLNK: "link"})


class NotOursError(Exception):
    """A file or folder belongs to another user, or others can change it. The message says whose it is."""


def check_folder(folder: Path) -> None:
    """Check a folder, and the folders above it.

    Raises:
        NotOursError: the folder belongs to another user, others may write to it, or another user can replace it.
        NotADirectoryError: the path is not a folder, or is a link that root did not make.
        OSError: the folder cannot be examined.
    """
    folder = Path(os.path.abspath(folder))
    check_way(folder)
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode) and found.st_uid == 0:  # with DynamicUser systemd creates links to its folders
        found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{folder} is not a folder")
    _check_owner(folder, found)
    # Root may have shared its folder with this service's group on purpose.
    others = stat.S_IWOTH if found.st_uid != os.getuid() else stat.S_IWOTH | stat.S_IWGRP
    if found.st_mode & others:
        raise NotOursError(f"other users can write to the folder {folder} (mode {_mode(found)}): chmod go-w {folder}")


def check_way(path: Path) -> None:
    """Check the folders above a file or folder, both in the path as written and with links resolved.

    Raises:
        NotOursError: one of these folders, or a link among them, belongs to another user, or every user can replace
            what is in it.
        OSError: one of the folders cannot be examined.
    """
    path = Path(os.path.abspath(path))
    above = [path.parent, *path.parent.parents]
    real = Path(os.path.realpath(path.parent))
    for folders in (above, [real, *real.parents]):
        _check_way(list(reversed(folders)))


def check_unchangeable(path: Path) -> None:
    """Check that nobody else can change or replace a file or folder whose content is trusted, such as a key.

    Links are followed. What lies on a read-only file system cannot be changed, whatever its mode.

    Raises:
        NotOursError: it, or a folder on the way to it, belongs to another user, or others can write to it. The message
            says which `chown` or `chmod` mends that.
        OSError: it cannot be examined.
    """
    path, real = Path(os.path.abspath(path)), Path(os.path.realpath(path))
    for place in dict.fromkeys((path, real)):
        check_way(place)
    _check_owner(path, path.lstat())
    for place, shared in ((real.parent, stat.S_ISVTX), (real, 0)):
        found = place.lstat()
        _check_owner(place, found)
        is_open = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & shared
        if is_open and not os.statvfs(place).f_flag & os.ST_RDONLY:
            kind = _KINDS.get(stat.S_IFMT(found.st_mode), "file")
            raise NotOursError(f"other users can write to the {kind} {place} (mode {_mode(found)}): chmod go-w {place}")


def others_can_read(path: Path) -> str | None:
    """Whether every user may read a file, as a sentence with the `chmod` that mends it; None if not."""
    found = path.stat()
    if not found.st_mode & stat.S_IROTH:
        return None
    return f"every user may read {path} (mode {_mode(found)}): chmod o-r {path}"


def check_made_by_us(path: Path, found: os.stat_result, file_type: int) -> None:
    """Check a file that was opened or found.

    Args:
        path: the file's path, for the message.
        found: the file's status.
        file_type: the type that the file must have: `stat.S_IFREG` or `stat.S_IFSOCK`.

    Raises:
        NotOursError: the file has another type, has a second name, or belongs to another user.
    """
    if stat.S_IFMT(found.st_mode) != file_type or found.st_nlink > 1:
        kind = _KINDS[file_type]
        raise NotOursError(
            f"{path} is not a plain {kind} (it is a link, has a second name, or is another type): remove it"
        )
    _check_owner(path, found)


def owner_name(uid: int) -> str:
    """A user's name for a message: `mallory (uid 1001)`."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _check_way(folders: list[Path]) -> None:
    for folder, found in _existing(folders):
        _check_owner(folder, found)
        if stat.S_ISLNK(found.st_mode):
            found = folder.stat()
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            mode = f"every user can replace what is in {folder} (mode {_mode(found)})"
            raise NotOursError(f"{mode}: chmod o-w {folder}, or use another folder")


def _existing(folders: list[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    for folder in folders:
        try:
            yield folder, folder.lstat()
        except FileNotFoundError:
            return


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (0, os.getuid()):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "file")
        whose = f"the {kind} {path} belongs to another user, {owner_name(found.st_uid)}"
        advice = f"`chown {os.getuid()} {path}` if you trust what is there, or remove this {kind}, or name another one"
        raise NotOursError(f"{whose}, who could replace it or its content: {advice}")


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):o}"
