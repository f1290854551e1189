"""Estimates the device memory that a config takes, as sums that can be checked: weights, streams, the largest forward.

The sums are those of the pool: a camera that `max_streams` admits allocates exactly its sum once its first frame has
shown its size.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..config import CameraConfig, ModelConfig, ResizeMode
from ..frames import Size
from ..model.checkpoint import blank_model
from .admission import HEADROOM, pool_shape
from .batch_size import step_bytes
from .preprocess import ResizeGeometry, resize_geometry
from .token_shape import TokenShape

ASSUMED_SIZE = (640, 480)
"""The size of a camera's frames where nothing says it: 4:3."""


@dataclass(frozen=True, slots=True)
class CameraEstimate:
    """What one camera takes.

    Attributes:
        name: the camera's name.
        source_size: width and height of its frames.
        size_is_known: whether that size is known; otherwise it is assumed.
        model_size: width and height of the images in the model.
        cache: the sum of the stream's memory in words; None if no global block runs.
        cache_bytes: bytes of the stream's memory.
        epoch_image_bytes: bytes of the images that are kept for the next epoch.
        step_frames: the most frames of the camera in one step, after the first one.
        forward_frames: the most frames of the camera in one forward pass, the first one included.
        frame_bytes: bytes, about, that a forward pass computes with per frame.
    """

    name: str
    source_size: Size
    size_is_known: bool
    model_size: Size
    cache: str | None
    cache_bytes: int
    epoch_image_bytes: int
    step_frames: int
    forward_frames: int
    frame_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes that the camera holds for as long as it runs."""
        return self.cache_bytes + self.epoch_image_bytes


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What a config takes of its device.

    Attributes:
        weights_bytes: bytes of the weights.
        parameters: numbers in the weights.
        cameras: what each camera takes.
        forward_frames: frames of the largest forward pass.
        forward_bytes: bytes, about, that it computes with.
    """

    weights_bytes: int
    parameters: int
    cameras: tuple[CameraEstimate, ...]
    forward_frames: int
    forward_bytes: int

    @property
    def lasting_bytes(self) -> int:
        """Bytes that are held between steps."""
        return self.weights_bytes + sum(camera.nbytes for camera in self.cameras)

    @property
    def total_bytes(self) -> int:
        """Bytes that are held during the largest step."""
        return self.lasting_bytes + self.forward_bytes


def estimate_memory(
    model: ModelConfig, cameras: Sequence[CameraConfig], sizes: Sequence[Size | None]
) -> MemoryEstimate:
    """Estimate the memory of a model and its cameras.

    Args:
        model: the model.
        cameras: the cameras.
        sizes: width and height of each camera's frames; None where they are unknown: `ASSUMED_SIZE` is assumed.

    Raises:
        ValueError: frames of such a size cannot be resized to the model.
    """
    weights = list(blank_model(model).state_dict().values())
    estimates = tuple(_estimate_camera(model, *pair) for pair in zip(cameras, sizes, strict=True))
    frames, forward_bytes = _largest_forward(estimates, model.max_batch)
    return MemoryEstimate(
        weights_bytes=sum(value.nbytes for value in weights),
        parameters=sum(value.numel() for value in weights),
        cameras=estimates,
        forward_frames=frames,
        forward_bytes=forward_bytes,
    )


def device_bytes(device: str) -> int:
    """Bytes of memory that a device has, free or not: a GPU's own, or the machine's for the CPU."""
    if device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return torch.cuda.get_device_properties(device).total_memory


def lasting_limit(device_bytes: int) -> int:
    """Bytes of a GPU's memory that weights and streams may hold; the rest is left for steps."""
    return device_bytes - device_bytes // HEADROOM


def tokens_per_frame(model: ModelConfig, size: Size = ASSUMED_SIZE, resize: ResizeMode = ResizeMode.CROP) -> int:
    """P, the tokens of one frame of this size."""
    return _token_shape(model, _geometry(model, size, resize)).tokens


def _estimate_camera(model: ModelConfig, camera: CameraConfig, size: Size | None) -> CameraEstimate:
    geometry = _geometry(model, size or ASSUMED_SIZE, camera.resize)
    tokens, shape = _token_shape(model, geometry), pool_shape(model)
    layout = tokens.layout(camera.stream)
    width, height = geometry.model_size
    return CameraEstimate(
        name=camera.name,
        source_size=geometry.source_size,
        size_is_known=size is not None,
        model_size=geometry.model_size,
        cache=shape.describe(layout) if model.running_mixers else None,
        cache_bytes=shape.bytes_of(layout),
        epoch_image_bytes=camera.stream.scale_frames * 3 * width * height if camera.stream.epoch_frames else 0,
        step_frames=camera.frames_per_step,
        forward_frames=max(camera.frames_per_step, camera.stream.scale_frames),
        frame_bytes=step_bytes(model, tokens),
    )


def _largest_forward(cameras: Sequence[CameraEstimate], max_batch: int) -> tuple[int, int]:
    # Frames and bytes. Batches are of one image size and of `max_batch` frames at most, and split no camera's frames.
    forwards = []
    for size in {camera.model_size for camera in cameras}:
        group = [camera for camera in cameras if camera.model_size == size]
        chunks = [camera.forward_frames for camera in group]
        frames = max(*chunks, min(max_batch, sum(chunks)))
        forwards.append((frames, frames * group[0].frame_bytes))
    return max(forwards, key=lambda forward: forward[1])


def _geometry(model: ModelConfig, size: Size, resize: ResizeMode) -> ResizeGeometry:
    return resize_geometry(size, resize, model.image_width, model.network.patch_size)


def _token_shape(model: ModelConfig, geometry: ResizeGeometry) -> TokenShape:
    return TokenShape.of(model.network, geometry.grid)
