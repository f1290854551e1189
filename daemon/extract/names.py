"""Finds the file names of a recording's images, and the frames that could not be decoded."""

import os
from collections.abc import Iterable, Sequence

from retinad.pipeline.errors import SourceError
from retinad.pipeline.sources.paths import ImageFiles, PathSpec, locate
from retinad.pipeline.sources.registry import parse_source

from .index import Failure, ShardEntry, Unreadable

NAMED_AT_MOST = 1000
"""Maximum number of unreadable frames that an index names; it names the first ones."""


def image_names(source: str, count: int | None) -> Sequence[str]:
    """List the image files of a recording, by `source_seq`, relative to their common folder.

    Bytes of a file name that cannot be decoded are escaped.

    Args:
        source: the recording, as in a config.
        count: number of images that the capture process has just found there, with a listing of its own.

    Returns:
        the file names; empty if the recording is not a folder or glob of images, or if their number is not `count`.
    """
    try:
        spec = parse_source(source)
        located = locate(spec.path) if isinstance(spec, PathSpec) else None
    except SourceError:
        return ()
    if not isinstance(located, ImageFiles) or len(located.paths) != count:
        return ()
    folder = os.path.commonpath({os.path.dirname(path) for path in located.paths})
    return [os.fsencode(os.path.relpath(path, folder)).decode(errors="backslashreplace") for path in located.paths]


def find_unreadable(
    shards: Iterable[ShardEntry], failures: Iterable[Failure], end: int, files: Sequence[str]
) -> tuple[int, tuple[Unreadable, ...]]:
    """Find the frames before `end` that have neither features nor a failure: these could not be decoded.

    Returns:
        the number of these frames, and the first `NAMED_AT_MOST` of them.
    """
    read = {frame.source_seq for shard in shards for frame in shard.frames}
    read.update(failure.source_seq for failure in failures)
    missing = [number for number in range(end) if number not in read]
    return len(missing), tuple(Unreadable(number, name_of(files, number)) for number in missing[:NAMED_AT_MOST])


def name_of(files: Sequence[str], source_seq: int) -> str | None:
    """The file name of a frame, or None if the name is not known."""
    return files[source_seq] if source_seq < len(files) else None
