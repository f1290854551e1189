"""Names the pictures of a recording that is a folder or glob, and those of its frames that could not be decoded."""

import os
from collections.abc import Iterable, Sequence

from retinad.pipeline.errors import SourceError
from retinad.pipeline.sources.paths import ImageFiles, PathSpec, locate
from retinad.pipeline.sources.registry import parse_source

from .index import Failure, ShardEntry, Unreadable

NAMED_AT_MOST = 1000
"""Unreadable frames that an index names: the first ones."""


def picture_names(source: str, count: int | None) -> Sequence[str]:
    """The files of a recording, by `source_seq`: below the folder that they all are in, and bytes of no text escaped.

    Args:
        source: the recording, as the config would name it.
        count: its pictures as the capture process found them, which looks by itself; a moment ago, best.

    Returns:
        None of them if it is no folder or glob of pictures, or if there are not as many by now.
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
    """The frames before `end` that neither gave features nor failed: nothing else is left out of a recording.

    Returns:
        How many they are, and the first `NAMED_AT_MOST` of them.
    """
    read = {frame.source_seq for shard in shards for frame in shard.frames}
    read.update(failure.source_seq for failure in failures)
    missing = [number for number in range(end) if number not in read]
    return len(missing), tuple(Unreadable(number, name_of(files, number)) for number in missing[:NAMED_AT_MOST])


def name_of(files: Sequence[str], source_seq: int) -> str | None:
    """The name of a frame's file, or None where it is not known."""
    return files[source_seq] if source_seq < len(files) else None
