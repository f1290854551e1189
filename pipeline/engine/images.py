"""Preprocesses images on the model's device: with plain PyTorch on a CPU, with two kernels on a GPU."""

import importlib.util
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from retinad.kernels.fused.preprocess import preprocess as run_kernels
from retinad.kernels.fused.preprocess_tables import ImageTables, image_tables

from ..frames import Frame, FrameStamp, Pixels
from .preprocess import ResizeGeometry, resampled, upload
from .view import StreamView

Change = Callable[[Tensor], Tensor]
"""Changes the pixels of a frame on the device: uint8 [height, width, 3], BGR, to the same."""

KEPT_GEOMETRIES = 16
"""Number of resize geometries whose filter tables are kept; the tables take about ten kilobytes per geometry."""

_MEAN, _STD = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
"""Images are not normalised here but in the model. So they stay whole levels k / 255, which the replay buffer keeps as
bytes."""

COPIERS = 4
"""Number of threads that copy a large image. On a server, one thread copied 7.6 GB/s and four 17.7 GB/s (3840x2160)."""

LARGE_BYTES = 4 << 20
"""Size in bytes from which several threads copy an image. At 2.3 MB the threads waited for each other longer than they
saved; at 6.2 MB they saved 0.1 ms of 0.8 ms (measured on the host of an H200)."""


class ImagePreprocessor:
    """Makes the model's images, on demand or ahead of time. They equal those of `preprocess` to within 1 / 255.

    Args:
        device: where images are made and stored.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._has_kernels = device.type == "cuda" and importlib.util.find_spec("triton") is not None
        self._tables: dict[ResizeGeometry, ImageTables] = {}
        self._prefetched: dict[FrameStamp, tuple[ResizeGeometry, StreamView | None, Tensor]] = {}
        self._copiers = ThreadPoolExecutor(COPIERS - 1, "retinad-copy")

    def prefetch(self, frames: Sequence[tuple[Frame, ResizeGeometry, StreamView | None]]) -> None:
        """Make images for later calls of `image_of`, replacing those of the previous call. Skips unusable frames."""
        self._prefetched.clear()
        for frame, geometry, view in frames:
            with suppress(ValueError, RuntimeError):  # RuntimeError: torch's, out of memory among them
                self._prefetched[frame.stamp] = geometry, view, self._made(frame, geometry, view)

    def image_of(self, frame: Frame, geometry: ResizeGeometry, view: StreamView | None = None) -> Tensor:
        """Return a frame's image, either the prefetched one, which is then released, or a new one; see `preprocess`.

        Args:
            frame: the frame.
            geometry: how it is resized.
            view: what is known of its camera's view, or None.

        Raises:
            ValueError: the frame does not have the size that the geometry expects, or the shape that the view expects.
        """
        made = self._prefetched.pop(frame.stamp, None)
        if made is not None and made[0] == geometry and made[1] is view:
            return made[2]
        return self._made(frame, geometry, view)

    def _made(self, frame: Frame, geometry: ResizeGeometry, view: StreamView | None) -> Tensor:
        return self.make(frame.pixels, geometry, None if view is None else view.of(frame.stamp).change)

    def make(self, pixels: Pixels, geometry: ResizeGeometry, change: Change | None = None) -> Tensor:
        """Make an image, see `preprocess`; `change` is applied to the pixels on the device first."""
        source = upload(pixels, geometry, self._device, self._copy)
        if change is not None:
            source = change(source)
        if not self._has_kernels:
            return resampled(source, geometry)
        tables = self._tables_of(geometry)
        width, height = geometry.model_size
        out = torch.empty((3, height, width), device=self._device)
        between = None
        if tables.columns is not None:
            between = torch.empty(tables.between_shape, dtype=torch.uint8, device=self._device)
        run_kernels(source, tables, between, out)
        return out

    def _copy(self, target: Pixels, source: Pixels) -> None:
        count = COPIERS if source.nbytes >= LARGE_BYTES else 1
        first, *others = zip(np.array_split(target, count), np.array_split(source, count), strict=True)
        copies = [self._copiers.submit(np.copyto, *part) for part in others]
        np.copyto(*first)
        for copy in copies:
            copy.result()

    def _tables_of(self, geometry: ResizeGeometry) -> ImageTables:
        tables = self._tables.get(geometry)
        if tables is None:
            while len(self._tables) >= KEPT_GEOMETRIES:
                self._tables.pop(next(iter(self._tables)))
            tables = self._tables[geometry] = image_tables(geometry, _MEAN, _STD, self._device)
        return tables
