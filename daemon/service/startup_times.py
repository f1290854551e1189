"""Measures how long the service takes to become ready, phase by phase."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..kernel_cache import KernelCache

if TYPE_CHECKING:  # it imports torch, which must find the kernel cache's variables set
    from retinad.pipeline.engine.statistics import LoadTimes


@dataclass(frozen=True, slots=True)
class StartupTimes:
    """Seconds from the start of the command until the service was ready, by phase.

    Attributes:
        total_s: the whole time; slightly more than the sum of the phases.
        imports_s: importing libraries and reading the config.
        weights_s: opening the device, building the model, and loading its weights.
        kernels_s: loading or compiling the attention kernels, and a trial run of them.
        warm_up_s: the first forward passes, which load or compile all other kernels.
        kernels_compiled: kernels that were not in the cache, counted as files of machine code.
    """

    total_s: float
    imports_s: float
    weights_s: float
    kernels_s: float
    warm_up_s: float
    kernels_compiled: int


class StartupTimer:
    """Times one start of the service. Make it when the command begins.

    Args:
        cache: the cache of compiled kernels.
        begun_s: `time.monotonic()` when the command began; None for now.
    """

    def __init__(self, cache: KernelCache, begun_s: float | None = None) -> None:
        self.cache = cache
        self._begun_s = time.monotonic() if begun_s is None else begun_s
        self._compiled = cache.compiled()
        self._entered_s = self._loaded_s = self._begun_s

    def enter(self) -> None:
        """Mark the end of imports and config: the service begins."""
        self._entered_s = time.monotonic()

    def loaded(self) -> None:
        """Mark the engine as loaded and warm."""
        self._loaded_s = time.monotonic()

    def ready(self, load: "LoadTimes") -> StartupTimes:
        """Mark the service as ready, and return all times.

        Args:
            load: times that the engine measured itself.
        """
        loading_s = self._loaded_s - self._entered_s
        return StartupTimes(
            total_s=round(time.monotonic() - self._begun_s, 3),
            imports_s=round(self._entered_s - self._begun_s, 3),
            weights_s=round(load.weights_s, 3),
            kernels_s=round(load.kernels_s, 3),
            warm_up_s=round(max(0.0, loading_s - load.weights_s - load.kernels_s), 3),
            kernels_compiled=self.cache.compiled() - self._compiled,
        )
