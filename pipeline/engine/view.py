"""Applies what is known of a camera's view: fills masked parts, undistorts, and takes out what the maps say of them."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..frames import MAP_KINDS, Affine, Features, FrameStamp, Numbers, Output, OutputKind, OutputTensor, Size
from ..geometry.lens import sampling_grid
from ..geometry.masks import Counts, counts_of
from ..view_config import MaskFill, ViewConfig

_COLOURS = {MaskFill.BLACK: (0, 0, 0), MaskFill.MEAN: (104, 116, 124)}
"""BGR. The mean is that of ImageNet, 0.406, 0.456 and 0.485 of 255, by which the network normalises."""


class FrameView:
    """A camera's view for frames of one size and crop, on a device.

    Args:
        config: what is known.
        captured: width and height of the captured frames.
        left, top: the first column and row of them that is used.
        size: width and height of the part that is used.
        device: where frames are changed.

    Attributes:
        intrinsics: fx, fy, cx and cy of the captured frame, undistorted, in pixels; None if unknown.

    Raises:
        ValueError: the calibration is for frames of another shape.
    """

    def __init__(
        self, config: ViewConfig, captured: Size, left: int, top: int, size: Size, device: torch.device
    ) -> None:
        calibration = None if config.calibration is None else config.calibration.fitted(captured)
        self.intrinsics = None if calibration is None else (*calibration.focal, *calibration.centre)
        self._left, self._top = left, top
        counts = np.ones(size[::-1], bool)
        if config.mask is not None:
            counts = counts_of(config.mask, captured)[top : top + size[1], left : left + size[0]]
        self._fill = _COLOURS.get(config.mask_fill) if config.mask is not None else None
        self._masked = torch.from_numpy(~counts)[..., None].to(device)
        self._grid: Tensor | None = None
        if calibration is not None and calibration.has_distortion:
            grid = torch.from_numpy(sampling_grid(calibration, left, top, size))[None]
            seen = functional.grid_sample(
                torch.from_numpy(counts)[None, None].float(), grid, "nearest", align_corners=True
            )
            counts = seen[0, 0].numpy() > 0  # pixels from beyond the frame do not count either
            self._grid = grid.to(device)
        self._counts: Counts = counts
        self._all_count = bool(counts.all())

    def change(self, image: Tensor) -> Tensor:
        """The picture for the model: uint8 [height, width, 3], BGR, contiguous, on the device."""
        if self._fill is not None:
            image = torch.where(self._masked, torch.tensor(self._fill, dtype=torch.uint8, device=image.device), image)
        if self._grid is None:
            return image
        planes = image.permute(2, 0, 1)[None].float()
        sampled = functional.grid_sample(planes, self._grid, "bilinear", align_corners=True)
        return sampled[0].permute(1, 2, 0).round().to(torch.uint8).contiguous()

    def told(self, features: Features, map_stride: int) -> Features:
        """Take ignored parts out of a record's maps, and add the tensor `mask` and the known intrinsics."""
        known = replace(features, known_intrinsics=self.intrinsics)
        if self._all_count:
            return known
        tensors = tuple(self._without(tensor, features.to_source, map_stride) for tensor in features.tensors)
        return replace(known, tensors=(*tensors, self._patches(features)))

    def _without(self, tensor: OutputTensor, to_source: Affine, stride: int) -> OutputTensor:
        output = tensor.output
        if output.kind not in MAP_KINDS:
            return tensor
        counts = self._of_pixels(to_source, (output.shape[1], output.shape[0]), stride)
        nothing = 0 if output.name.endswith("_confidence") else np.nan
        data: Numbers = np.where(counts.reshape(*counts.shape, *(1,) * (tensor.data.ndim - 2)), tensor.data, nothing)
        return OutputTensor(output, data.astype(tensor.data.dtype))

    def _patches(self, features: Features) -> OutputTensor:
        (width, height), (rows, columns) = features.model_size, features.grid
        counts = self._of_pixels(features.to_source, (width, height), 1)
        shares = counts.reshape(rows, height // rows, columns, width // columns).mean(axis=(1, 3))
        return OutputTensor(Output("mask", (rows, columns), "float16", OutputKind.FEATURES), shares.astype(np.float16))

    def _of_pixels(self, to_source: Affine, size: Size, stride: int) -> Counts:
        # Where pixels of a map count; padding, which shows no part of the frame, does.
        (a, _, c), (_, e, f) = to_source
        x = np.rint(a * stride * np.arange(size[0]) + c).astype(int) - self._left
        y = np.rint(e * stride * np.arange(size[1]) + f).astype(int) - self._top
        height, width = self._counts.shape
        counts: Counts = self._counts[y.clip(0, height - 1)[:, None], x.clip(0, width - 1)].copy()
        counts[(y < 0) | (y >= height)] = True
        counts[:, (x < 0) | (x >= width)] = True
        return counts


class StreamView:
    """A stream's view, which is prepared anew when the frames' size changes.

    Args:
        config: what is known.
        device: where frames are changed.
    """

    def __init__(self, config: ViewConfig, device: torch.device) -> None:
        self._config = config
        self._device = device
        self._kept: tuple[tuple[Size, int, int, Size], FrameView] | None = None

    def of(self, stamp: FrameStamp) -> FrameView:
        """The view of a frame.

        Raises:
            ValueError: the calibration is for frames of another shape.
        """
        left, top = (0, 0) if stamp.crop is None else (stamp.crop.left, stamp.crop.top)
        key = stamp.captured_size, left, top, stamp.source_size
        if self._kept is None or self._kept[0] != key:
            self._kept = key, FrameView(self._config, *key, self._device)
        return self._kept[1]
