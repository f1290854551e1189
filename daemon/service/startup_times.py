"""How long the service took to be ready, part by part: what to look at when a restart takes long."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..kernel_cache import KernelCache

if TYPE_CHECKING:  # torch comes with it, and must find the cache's variables set
    from retinad.pipeline.engine.statistics import LoadTimes


@dataclass(frozen=True, slots=True)
class ReadyTimes:
    """Seconds from the command's beginning until the service was ready, and where they went.

    Attributes:
        total_s: all of them: the parts, and a little between them.
        imports_s: libraries imported, the config read.
        weights_s: the device opened, the model made, its weights read and put there.
        kernels_s: attention's kernels loaded, or compiled where there were none, and tried.
        warm_up_s: the first forwards, in which all other kernels are loaded or compiled.
        kernels_compiled: kernels that were not in the cache before; as files of machine code.
    """

    total_s: float
    imports_s: float
    weights_s: float
    kernels_s: float
    warm_up_s: float
    kernels_compiled: int


class StartUp:
    """Watches one start of the service; made when the command begins.

    Args:
        cache: where compiled kernels are kept.
        begun_s: `time.monotonic()` when the command began; None for now.
    """

    def __init__(self, cache: KernelCache, begun_s: float | None = None) -> None:
        self.cache = cache
        self._begun_s = time.monotonic() if begun_s is None else begun_s
        self._compiled = cache.compiled()
        self._entered_s = self._loaded_s = self._begun_s

    def enter(self) -> None:
        """All is imported and the config is read: the service begins."""
        self._entered_s = time.monotonic()

    def loaded(self) -> None:
        """The engine is there, and warm."""
        self._loaded_s = time.monotonic()

    def ready(self, load: "LoadTimes") -> ReadyTimes:
        """The service is ready; `load` is what the engine says of its own making."""
        loading_s = self._loaded_s - self._entered_s
        return ReadyTimes(
            total_s=round(time.monotonic() - self._begun_s, 3),
            imports_s=round(self._entered_s - self._begun_s, 3),
            weights_s=round(load.weights_s, 3),
            kernels_s=round(load.kernels_s, 3),
            warm_up_s=round(max(0.0, loading_s - load.weights_s - load.kernels_s), 3),
            kernels_compiled=self.cache.compiled() - self._compiled,
        )
