"""Where compiled kernels are kept between starts: libraries learn it from variables that are set before their import.

Checked against Triton 3.7 (which reads its variable at each compilation) and FlashInfer 0.6.13 (which reads its own
when it is imported, and keeps its files in `.cache/flashinfer` below). torch.compile is not used. This is one of the
three files that read the process's environment (the others are `config.py` and `systemd.py`), and it changes it.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from .config.directories import DirectoryError, find_directories, make_private

VARIABLES = MappingProxyType(
    {"TRITON_CACHE_DIR": "triton", "FLASHINFER_WORKSPACE_BASE": "flashinfer", "CUDA_CACHE_PATH": "cuda"}
)
"""The folder below the cache directory, by the variable that names it; read-only."""

_COMPILED = frozenset({".cubin", ".so"})
_NEVER_EMPTY = _COMPILED | {".ptx", ".json", ".o"}


@dataclass(frozen=True, slots=True)
class KernelCache:
    """The folder that holds compiled kernels.

    Attributes:
        folder: where, or None where the operator has named other places for all of them.
        problem: why the kernels of this run are not kept, or None if they are.
        removed: folders of kernels that were damaged, and are compiled again.
    """

    folder: Path | None
    problem: str | None = None
    removed: int = 0

    def compiled(self) -> int:
        """Compiled kernels in it now."""
        return sum(path.suffix in _COMPILED for path in _files(self.folder))


def keep_kernels(stack: ExitStack, environment: MutableMapping[str, str] = os.environ) -> KernelCache:
    """Let libraries keep compiled kernels in the service's cache directory; call it before any of them is imported.

    A variable that is set already stays as it is. Where the directory cannot be used, a temporary one takes its place.

    Args:
        stack: removes the temporary folder when it closes.
        environment: gets the variables.
    """
    missing = [name for name in VARIABLES if not environment.get(name)]
    if not missing:
        return KernelCache(None)
    cache = _open(find_directories(environment).cache, stack)
    for name in missing:
        environment[name] = f"{cache.folder}/{VARIABLES[name]}"
    return cache


def _open(folder: Path, stack: ExitStack) -> KernelCache:
    try:
        make_private(folder)
        return KernelCache(folder, removed=_remove_damaged(folder))
    except DirectoryError as error:
        problem = str(error)
    except OSError as error:
        problem = f"the folder {folder} cannot be mended: {error.strerror}"
    return KernelCache(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="retinad-cache-"))), problem)


def _remove_damaged(folder: Path) -> int:
    # A machine that loses its power leaves files that were never written out: they have their names, and are empty.
    # A library would fail on them at every start. What else belongs to such a kernel goes too: Triton trusts a folder
    # that has its description.
    places = {path.parent for path in _files(folder) if path.suffix in _NEVER_EMPTY and not path.stat().st_size}
    for place in places:
        if place.exists():  # it may lie in one that is gone already
            shutil.rmtree(place)
    return len(places)


def _files(folder: Path | None) -> Iterator[Path]:
    for name in VARIABLES.values() if folder is not None else ():
        for place, _, files in os.walk(Path(str(folder), name)):
            yield from (Path(place, file) for file in files)
