"""Keeps compiled kernels between starts: sets the variables that tell libraries where to store theirs.

The variables are set before the libraries are imported. Checked against Triton 3.7 (which reads its variable at each
compilation) and FlashInfer 0.6.13 (which reads its own when it is imported, and keeps its files below it in
`.cache/flashinfer`). torch.compile is not used. This is one of the few files that read the process's environment (the
others are `config/load.py`, `config/job.py` and `systemd.py`), and the only one that changes it.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from retinad.pipeline.files.ownership import NotOursError, check_way

from .config.directories import DirectoryError, find_directories, make_private
from .exit_codes import ExitCode

VARIABLES = MappingProxyType(
    {"TRITON_CACHE_DIR": "triton", "FLASHINFER_WORKSPACE_BASE": "flashinfer", "CUDA_CACHE_PATH": "cuda"}
)
"""Subfolder of the cache directory for each library, by the environment variable that the library reads. Read-only."""

_COMPILED = frozenset({".cubin", ".so"})
_NEVER_EMPTY = _COMPILED | {".ptx", ".json", ".o"}


@dataclass(frozen=True, slots=True)
class KernelCache:
    """The folder that holds compiled kernels.

    Attributes:
        folder: the folder, or None if the operator has set all variables.
        problem: why the kernels of this run are not kept, or None if they are.
        is_foreign: whether the problem is that the folder is another user's, or that others can replace it.
        removed: number of folders with damaged kernels, which were removed and will be compiled again.
    """

    folder: Path | None
    problem: str | None = None
    is_foreign: bool = False
    removed: int = 0

    def compiled(self) -> int:
        """The number of compiled kernels in the folder now."""
        return sum(path.suffix in _COMPILED for path in _files(self.folder))


def keep_kernels(stack: ExitStack, environment: MutableMapping[str, str] = os.environ) -> KernelCache:
    """Make libraries keep compiled kernels in the service's cache directory. Call it before any of them is imported.

    A variable that is already set is left unchanged, but its folder must not be one in which others can replace files.
    If the cache directory cannot be used, a temporary one replaces it.

    Args:
        stack: removes the temporary folder when it closes.
        environment: the environment variables, which are changed here.

    Raises:
        DirectoryError: neither the cache directory nor one for temporary files can be used.
    """
    if (problem := foreign_folder(environment)) is not None:
        return KernelCache(None, problem, is_foreign=True)
    missing = [name for name in VARIABLES if not environment.get(name)]
    if not missing:
        return KernelCache(None)
    cache = _open(find_directories(environment).cache, stack)
    for name in missing:
        environment[name] = f"{cache.folder}/{VARIABLES[name]}"
    return cache


def foreign_folder(environment: Mapping[str, str]) -> str | None:
    """Why another user could put code into a folder that the operator has set; None if nobody could."""
    for name in VARIABLES:
        if value := environment.get(name):
            try:
                check_way(Path(value) / "kernel")
            except NotOursError as error:
                return f"{name}: {error}"
            except OSError:  # the library reports it
                continue
    return None


def _open(folder: Path, stack: ExitStack) -> KernelCache:
    is_foreign = False
    try:
        make_private(folder)
        return KernelCache(folder, removed=_remove_damaged(folder))
    except DirectoryError as error:
        problem, is_foreign = str(error), error.code is ExitCode.NO_PERMISSION
    except OSError as error:
        problem = f"damaged kernels in {folder} cannot be removed: {error.strerror}"
    try:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="retinad-cache-"))
    except OSError as error:
        reason = f"{problem}; and no folder for temporary files can be written to: set TMPDIR to a folder that can"
        raise DirectoryError(ExitCode.CANNOT_CREATE, reason) from error
    return KernelCache(Path(temporary), problem, is_foreign)


def _remove_damaged(folder: Path) -> int:
    # A power failure leaves files whose contents were never written to disk: they exist, but are empty. A library would
    # fail on them at every start. The whole folder of such a kernel is removed: Triton trusts a folder that has its
    # description.
    places = {path.parent for path in _files(folder) if path.suffix in _NEVER_EMPTY and not path.stat().st_size}
    for place in places:
        if place.exists():  # this folder may be inside one that was just removed
            shutil.rmtree(place)
    return len(places)


def _files(folder: Path | None) -> Iterator[Path]:
    for name in VARIABLES.values() if folder is not None else ():
        for place, _, files in os.walk(Path(str(folder), name)):
            yield from (Path(place, file) for file in files)
