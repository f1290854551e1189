"""The files that `retinad trajectory` and `retinad cloud` write. A file's suffix is its format."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from retinad.pipeline.files.atomic import try_writing

from ..exit_codes import ExitCode, JobError

KEPT = 999
"""Largest number of an earlier trajectory's file."""


@dataclass(frozen=True, slots=True)
class Target:
    """One file to write.

    Attributes:
        path: the file.
        suffix: the end of its name, such as `.tum.txt`.
        form: its format.
    """

    path: Path
    suffix: str
    form: str

    def numbered(self) -> Path | None:
        """A path for the file of an earlier trajectory: `room-1.ply` for `room.ply`, the first one that is free.

        None if the numbers up to `KEPT` are taken.
        """
        base = self.path.name[: -len(self.suffix)]
        paths = (self.path.with_name(f"{base}-{number}{self.suffix}") for number in range(1, KEPT + 1))
        return next((path for path in paths if not path.exists()), None)


def find_targets(paths: Iterable[Path], forms: Mapping[str, str]) -> tuple[Target, ...]:
    """Find the format of each file, and whether it can be written.

    Args:
        paths: the files.
        forms: the format of each suffix.

    Raises:
        JobError: a suffix is not known, a file is named twice, or a file cannot be written.
    """
    targets: list[Target] = []
    for path in paths:
        suffix = next((suffix for suffix in forms if path.name.endswith(suffix) and path.name != suffix), None)
        if suffix is None:
            raise JobError(ExitCode.USAGE, f"-o {path}: expected a name that ends in {', '.join(forms)}")
        if any(path == target.path for target in targets):
            raise JobError(ExitCode.USAGE, f"-o {path} is given twice")
        try:
            try_writing(path)
        except OSError as error:
            raise JobError(ExitCode.CANNOT_CREATE, f"{path} cannot be written: {error.strerror}") from error
        targets.append(Target(path, suffix, forms[suffix]))
    return tuple(targets)
