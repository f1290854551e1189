"""Estimates the device memory that a config needs: for the weights, for the streams, and for the largest forward pass.

For streams, the estimate is the pool's own calculation: once a camera's first frame has shown its size, its stream
allocates exactly the estimated memory.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..config import CameraConfig, ModelConfig, ResizeMode
from ..frames import Size
from ..model.checkpoint import blank_model
from .admission import HEADROOM, pool_shape
from .batch_size import head_bytes, pose_bytes, step_bytes
from .preprocess import ResizeGeometry, resize_geometry
from .token_shape import TokenShape

ASSUMED_SIZE = (640, 480)
"""Width and height that are assumed for a camera's frames if the config does not state them: 4:3."""


@dataclass(frozen=True, slots=True)
class CameraEstimate:
    """The memory that one camera needs.

    Attributes:
        name: the camera's name.
        source_size: width and height of the camera's frames.
        size_is_known: whether that size is known; otherwise it is assumed.
        model_size: width and height of the model's images.
        cache: the size of the stream's memory as text, with its calculation; None if no global block runs.
        cache_bytes: size of the stream's memory in bytes.
        pose_bytes: size of the camera head's memory of the stream, in bytes; 0 if no pose is published.
        epoch_image_bytes: total size of the images that are kept for the next epoch, in bytes.
        step_frames: maximum number of the camera's frames in one step, except in the first step.
        forward_frames: maximum number of the camera's frames in one forward pass, including the first one.
        frame_bytes: approximate memory that a forward pass needs per frame, in bytes.
        head_bytes: approximate memory that a forward pass needs for maps of depth or points, in bytes.
    """

    name: str
    source_size: Size
    size_is_known: bool
    model_size: Size
    cache: str | None
    cache_bytes: int
    pose_bytes: int
    epoch_image_bytes: int
    step_frames: int
    forward_frames: int
    frame_bytes: int
    head_bytes: int

    def working_bytes(self, frames: int) -> int:
        """Approximate memory that a forward pass needs for a number of frames of this size, in bytes."""
        return frames * self.frame_bytes + self.head_bytes

    @property
    def nbytes(self) -> int:
        """Memory that the camera holds as long as it runs, in bytes."""
        return self.cache_bytes + self.pose_bytes + self.epoch_image_bytes


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The device memory that a config needs.

    Attributes:
        weights_bytes: size of the weights in bytes.
        parameters: number of parameters in the weights.
        cameras: the memory that each camera needs.
        forward_frames: number of frames in the largest forward pass.
        forward_bytes: approximate memory that this forward pass needs, in bytes.
    """

    weights_bytes: int
    parameters: int
    cameras: tuple[CameraEstimate, ...]
    forward_frames: int
    forward_bytes: int

    @property
    def lasting_bytes(self) -> int:
        """Memory that is held between steps, in bytes."""
        return self.weights_bytes + sum(camera.nbytes for camera in self.cameras)

    @property
    def total_bytes(self) -> int:
        """Memory that is held during the largest step, in bytes."""
        return self.lasting_bytes + self.forward_bytes


def estimate_memory(
    model: ModelConfig, cameras: Sequence[CameraConfig], sizes: Sequence[Size | None]
) -> MemoryEstimate:
    """Estimate the memory of a model and its cameras.

    Args:
        model: the model.
        cameras: the cameras.
        sizes: width and height of each camera's frames, or None if they are unknown; `ASSUMED_SIZE` is then assumed.

    Raises:
        ValueError: frames of such a size cannot be fitted to the model.
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
    """Total memory of a device in bytes, free or not. For the CPU, it is the machine's memory."""
    if device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return torch.cuda.get_device_properties(device).total_memory


def lasting_limit(device_bytes: int) -> int:
    """Memory in bytes that weights and streams may hold on a GPU with `device_bytes`; the rest is left for steps."""
    return device_bytes - device_bytes // HEADROOM


def tokens_per_frame(model: ModelConfig, size: Size = ASSUMED_SIZE, resize: ResizeMode = ResizeMode.CROP) -> int:
    """P, the number of tokens per frame, for frames of this size."""
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
        pose_bytes=pose_bytes(model, camera.stream, camera.outputs or model.outputs),
        epoch_image_bytes=camera.stream.scale_frames * 3 * width * height if camera.stream.epoch_frames else 0,
        step_frames=camera.frames_per_step,
        forward_frames=max(camera.frames_per_step, camera.stream.scale_frames),
        frame_bytes=step_bytes(model, tokens.seeing(camera.stream.window)),
        head_bytes=head_bytes(model, tokens),
    )


def _largest_forward(cameras: Sequence[CameraEstimate], max_batch: int) -> tuple[int, int]:
    # The numbers of frames and bytes of the largest forward pass. A batch has images of one size. It has at most
    # `max_batch` frames, unless one camera alone has more, because the frames of a camera are never split.
    forwards = []
    for size in {camera.model_size for camera in cameras}:
        group = [camera for camera in cameras if camera.model_size == size]
        chunks = [camera.forward_frames for camera in group]
        frames = max(*chunks, min(max_batch, sum(chunks)))
        forwards.append((frames, group[0].working_bytes(frames)))
    return max(forwards, key=lambda forward: forward[1])


def _geometry(model: ModelConfig, size: Size, resize: ResizeMode) -> ResizeGeometry:
    return resize_geometry(size, resize, model.image_width, model.network.patch_size)


def _token_shape(model: ModelConfig, geometry: ResizeGeometry) -> TokenShape:
    return TokenShape.of(model.network, geometry.grid)
