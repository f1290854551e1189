"""The folder of public keys whose owners may subscribe."""

import os
import stat
import time
from pathlib import Path

from retinad.client.curve_keys import KeyFile, KeyFileError, decode_key, load_keys

from ..errors import AccessError, PublishError
from ..files.ownership import NotOursError, check_unchangeable

_FIELD = "curve.authorized_keys_dir"
_SETTLED_NS = 100_000_000
"""Nanoseconds for which a changed file is read again at each check: a second change may leave the same time stamp."""
_NAMED = 5

_Seen = tuple[tuple[str, tuple[int, ...]], ...]


class AuthorizedKeys:
    """The public keys in a folder, read again when a file of it is added, removed or changed.

    A key applies for as long as its file is there. Files that cannot be read, that belong to another user, or that
    others can write to are left out, and named in `error`. If the same is true of the folder itself, the previous keys
    stay valid.

    Args:
        folder: folder of `*.key` files.

    Attributes:
        error: what could not be read at the last attempt, or None.

    Raises:
        AccessError: the folder belongs to another user, or others can add keys to it.
        PublishError: the folder cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.error: str | None = None
        self._problems: str | None = None
        self._folder = folder
        try:
            self._seen: _Seen | None = self._look()
        except NotOursError as exc:
            raise AccessError(f"the authorized keys are not safe: {exc}", _FIELD) from exc
        except OSError as exc:
            raise PublishError(f"cannot read the authorized keys in {self._folder}: {exc.strerror}", _FIELD) from exc
        self._keys, problems = self._read(self._seen)
        self.error = self._problems = _summary(problems)

    def current(self) -> frozenset[bytes]:
        """The public keys that are authorized now, of 32 bytes each."""
        try:
            seen = self._look()
        except (NotOursError, OSError) as exc:
            problem = exc if isinstance(exc, NotOursError) else exc.strerror
            reason = f"cannot use the folder {self._folder}: {problem}"
            self.error = f"{reason}; the keys that were read before stay valid"
            return self._keys
        if seen != self._seen:
            self._keys, problems = self._read(seen)
            self._seen = seen if _is_settled(seen) else None
            self._problems = _summary(problems)
        self.error = self._problems
        return self._keys

    def _look(self) -> _Seen:
        check_unchangeable(self._folder)
        # The folder's own time does not change with a file's content or mode.
        with os.scandir(self._folder) as entries:
            return tuple(sorted((entry.name, _stamp(entry)) for entry in entries if entry.name.endswith(".key")))

    def _read(self, seen: _Seen) -> tuple[frozenset[bytes], list[str]]:
        keys, problems = set[bytes](), list[str]()
        for name, stamp in seen:
            path = self._folder / name
            try:
                if stamp and not stat.S_ISREG(stamp[0]):  # reading a pipe would block the service
                    raise KeyFileError(f"cannot read the CURVE key in {path}: it is not a file")
                key = decode_key(load_authorized_key(path).public_key)
            except (KeyFileError, NotOursError) as exc:
                problems.append(str(exc))
            else:
                keys |= {key} if key is not None else set()
        return frozenset(keys), problems


def load_authorized_key(path: Path) -> KeyFile:
    """Read the key file of a client.

    Raises:
        NotOursError: the file belongs to another user, or others can write to it.
        KeyFileError: the file cannot be read, or is not a key file.
    """
    try:
        check_unchangeable(path)
    except OSError as exc:
        raise KeyFileError(f"cannot read the CURVE key in {path}: {exc.strerror}") from exc
    return load_keys(path)


def _stamp(entry: os.DirEntry[str]) -> tuple[int, ...]:
    """Values that change with a file, type and mode first; empty if it cannot be examined, as with a dangling link."""
    try:
        found = entry.stat()
    except OSError:
        return ()
    return found.st_mode, found.st_uid, found.st_dev, found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size


def _is_settled(seen: _Seen) -> bool:
    return all(stamp and stamp[4] < time.time_ns() - _SETTLED_NS for _, stamp in seen)


def _summary(problems: list[str]) -> str | None:
    if not problems:
        return None
    more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
    return f"{'; '.join(problems[:_NAMED])}{more}; the other keys apply"
