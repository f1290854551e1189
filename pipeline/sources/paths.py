"""Looks at what a path means: a video file, pictures (a file, a folder, a glob) or a device file. Needs no OpenCV."""

import glob
import os
import re
import stat
from dataclasses import dataclass

from ..errors import SourceError, SourceFault

PICTURE_SUFFIXES = frozenset(
    {".bmp", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures in the order in which they are played, at least one."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Video:
    """A file that is no picture by its suffix."""

    path: str


@dataclass(frozen=True, slots=True)
class Device:
    """A character device."""

    path: str


Located = Pictures | Video | Device


def locate(path: str) -> Located:
    """Find what lies at a path; a path that exists is taken literally, even if it looks like a glob.

    Raises:
        SourceError: `MISSING`, `PERMISSION`, `UNREADABLE`, each with what is wrong.
    """
    path = os.path.expanduser(path)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return _located(match_files(path), path)
    except OSError as exc:
        fault = SourceFault.PERMISSION if isinstance(exc, PermissionError) else SourceFault.UNREADABLE
        raise SourceError(fault, f"{path} cannot be reached: {exc.strerror}") from exc
    if stat.S_ISCHR(mode):
        return Device(path)
    if stat.S_ISDIR(mode):
        return Pictures(tuple(list_pictures(path)))
    return _located([path], path)


def match_files(pattern: str) -> list[str]:
    """The files that a glob matches, in natural order.

    Raises:
        SourceError: `MISSING`: no glob and no file, or a glob that matches nothing.
    """
    if not glob.has_magic(pattern):
        hint = ": printf patterns are not used, give the folder or a glob" if re.search(r"%0?\d*d", pattern) else ""
        raise SourceError(SourceFault.MISSING, f"there is no file or folder {pattern}{hint}")
    found = [path for path in glob.glob(pattern) if not os.path.isdir(path)]
    if not found:
        raise SourceError(SourceFault.MISSING, f"no file matches {pattern}")
    return sorted(found, key=natural_key)


def list_pictures(folder: str) -> list[str]:
    """A folder's pictures by suffix, in natural order; what cannot be decoded among them is found out later.

    Raises:
        SourceError: `MISSING`: none is there. `PERMISSION`, `UNREADABLE`.
    """
    try:
        names = [name for name in os.listdir(folder) if is_picture(name)]
    except OSError as exc:
        fault = SourceFault.PERMISSION if isinstance(exc, PermissionError) else SourceFault.UNREADABLE
        raise SourceError(fault, f"folder {folder} cannot be listed: {exc.strerror}") from exc
    if not names:
        suffixes = " ".join(sorted(PICTURE_SUFFIXES))
        raise SourceError(SourceFault.MISSING, f"folder {folder} has no pictures ({suffixes})")
    return [os.path.join(folder, name) for name in sorted(names, key=natural_key)]


def _located(found: list[str], asked: str) -> Located:
    pictures = tuple(path for path in found if is_picture(path))
    if pictures:
        return Pictures(pictures)
    if len(found) == 1:
        return Video(found[0])
    message = f"{asked} matches {len(found)} files, none of which is a picture: one video is one source"
    raise SourceError(SourceFault.UNREADABLE, message)


def is_picture(name: str) -> bool:
    """Whether a file's suffix is that of a picture."""
    return os.path.splitext(name)[1].lower() in PICTURE_SUFFIXES


def natural_key(name: str) -> tuple[list[tuple[str, int]], str]:
    """Sorts `f2` before `f10`: runs of digits count as numbers; equal ones (`f1`, `f01`) by their spelling."""
    pieces = re.split(r"([0-9]+)", name.casefold())
    return [(text, int(number)) for text, number in zip(pieces[::2], [*pieces[1::2], "0"], strict=True)], name
