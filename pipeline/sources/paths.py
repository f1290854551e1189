"""Paths as a kind of source: a video file, images (a file, a folder, a glob) or a device file. Needs no OpenCV."""

import glob
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ..errors import SourceError, SourceFault
from .spec import SourceKind, SourceSpec, unreadable

if TYPE_CHECKING:
    from ..config import CameraConfig
    from .reader import Reader

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
_FILE_SCHEME = "file://"


@dataclass(frozen=True, slots=True)
class PathSpec(SourceSpec):
    """A path or glob; the file system decides what it is."""

    path: str

    def check(self) -> None:
        """See `SourceSpec`."""
        locate(self.path)

    def load(self, config: "CameraConfig") -> "Callable[[], Reader]":
        """See `SourceSpec`."""
        locate(self.path)  # a missing file is reported before OpenCV is loaded
        from . import opencv  # noqa: F401  # loaded before the source counts as opened

        return lambda: open_path(self.path, config)


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Image files in the order in which they are played, at least one."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VideoFile:
    """A file whose suffix is not that of an image."""

    path: str


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """A character device."""

    path: str


LocatedPath = ImageFiles | VideoFile | DeviceFile


def locate(path: str) -> LocatedPath:
    """Find out what a path is. A path that exists is taken literally, even if it looks like a glob.

    Raises:
        SourceError: the path cannot be used (fault `MISSING`, `PERMISSION` or `UNREADABLE`); the message says why.
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
        return DeviceFile(path)
    if stat.S_ISDIR(mode):
        return ImageFiles(tuple(list_images(path)))
    return _located([path], path)


def open_path(path: str, config: "CameraConfig") -> "Reader":
    """Find out what a path is now, and open it.

    Raises:
        SourceError: the path cannot be used (fault `MISSING`, `PERMISSION` or `UNREADABLE`); the message says why.
    """
    match locate(path):
        case ImageFiles(paths):
            from ..config import CaptureMode
            from .images import ImagesReader

            return ImagesReader(paths, patient=config.mode is CaptureMode.LIVE)
        case VideoFile(path):
            from .video import open_file

            return open_file(path, config)
        case DeviceFile(path):
            from .v4l2 import open_device

            return open_device(path, config)


def match_files(pattern: str) -> list[str]:
    """The files that a glob matches, in natural order. `**` matches any number of folders, also none.

    Raises:
        SourceError: no file matches, or the text is neither a glob nor an existing file (fault `MISSING`).
    """
    if not glob.has_magic(pattern):
        hint = ": printf patterns are not supported, use the folder or a glob" if _is_printf(pattern) else ""
        raise SourceError(SourceFault.MISSING, f"there is no file or folder {pattern}{hint}")
    if any("**" in part and part != "**" for part in pattern.split(os.sep)):
        reason = "`**` stands for folders and must be alone between slashes, as in frames/**/*.png; use * within a name"
        raise SourceError(SourceFault.MISSING, f"{pattern}: {reason}")
    found = [path for path in _matches(pattern) if not os.path.isdir(path)]
    if not found:
        raise SourceError(SourceFault.MISSING, f"no file matches {pattern}")
    return sorted(found, key=natural_key)


def _matches(pattern: str) -> list[str]:
    parts = pattern.split(os.sep)
    if "**" not in parts:
        return glob.glob(pattern)
    # pathlib follows no links to folders: two that lead upwards would make glob's way exponential.
    first = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    base = Path(os.sep.join(parts[:first]) or (os.sep if first else ""))
    rest = [*filter(None, parts[first:]), *(["*"] if parts[-1] == "**" else [])]
    hidden = any(part.startswith(".") for part in rest)
    return [str(path) for path in base.glob(os.sep.join(rest)) if hidden or not _is_hidden(path.relative_to(base))]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def list_images(folder: str) -> list[str]:
    """A folder's images, recognised by suffix, in natural order. Whether they can be decoded is not checked.

    Raises:
        SourceError: the folder has no images (fault `MISSING`), or cannot be listed (`PERMISSION` or `UNREADABLE`).
    """
    try:
        names = [name for name in os.listdir(folder) if is_image(name)]
    except OSError as exc:
        fault = SourceFault.PERMISSION if isinstance(exc, PermissionError) else SourceFault.UNREADABLE
        raise SourceError(fault, f"folder {folder} cannot be listed: {exc.strerror}") from exc
    if not names:
        suffixes = " ".join(sorted(IMAGE_SUFFIXES))
        raise SourceError(SourceFault.MISSING, f"folder {folder} has no images ({suffixes})")
    return [os.path.join(folder, name) for name in sorted(names, key=natural_key)]


def is_image(name: str) -> bool:
    """Whether a file's suffix is that of an image."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def natural_key(name: str) -> tuple[list[tuple[str, int]], str]:
    """Sort key that puts `f2` before `f10`: runs of digits count as numbers; ties (`f1`, `f01`) sort by spelling."""
    pieces = re.split(r"([0-9]+)", name.casefold())
    return [(text, int(number)) for text, number in zip(pieces[::2], [*pieces[1::2], "0"], strict=True)], name


def _located(found: list[str], path: str) -> LocatedPath:
    images = tuple(path for path in found if is_image(path))
    if images:
        return ImageFiles(images)
    if len(found) == 1:
        return VideoFile(found[0])
    message = f"{path} matches {len(found)} files, none of which is an image; a video file is a source of its own"
    raise SourceError(SourceFault.UNREADABLE, message)


def _is_printf(pattern: str) -> bool:
    return re.search(r"%0?\d*d", pattern) is not None


def _parse(text: str) -> PathSpec | None:
    scheme, separator, rest = text.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return PathSpec(text)
    if f"{scheme.lower()}://" != _FILE_SCHEME:
        return None
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise unreadable("the address names a file on another host: write file:///path or the plain path")
    return PathSpec(unquote(slash + path))


PATH = SourceKind(
    name="a path to a video, an image or a folder of images",
    forms=("/data/clip.mp4", "/data/frames", "/data/frames/*.png", "/data/**/*.png", "file:///data/clip.mp4"),
    schemes=(_FILE_SCHEME,),
    parse=_parse,
    ends=True,
)
