"""Chooses the number of frames of a recording that one step processes: as many as fit in the device's free memory."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from ..cache.kv_pool import gib
from ..cache.pose_memory import pose_layout
from ..config import ModelConfig, ResizeMode, StreamConfig
from ..errors import AdmissionError
from ..frames import MAP_KINDS, OutputKind, Size
from ..model.checkpoint import blank_model
from .admission import memory_limit, pool_shape, pose_pool_shape
from .heads import make_heads
from .map_outputs import FRAMES_AT_ONCE
from .preprocess import resize_geometry
from .token_shape import TokenShape

FRAMES_PER_STEP = (32, 16, 8, 4, 2, 1)
"""Numbers of frames that are tried, the largest first."""

BLOCK_BYTES = 64
"""Size of a block's activations for each channel of each token, in bytes."""

MAP_BYTES = 32
"""Memory in bytes that a dense head needs per pixel, and per channel of its last convolution's input. Measured on an
H200 with torch 2.11, for two frames of 518 x 378 pixels: 12.7. That is counted twice, since a captured step keeps
memory of its own, and rounded up."""


@dataclass(frozen=True, slots=True)
class Room:
    """A device's free memory once the weights are loaded.

    Attributes:
        free_bytes: all free memory, in bytes.
        pool_bytes: the part of it that the streams' caches may use, in bytes.
    """

    free_bytes: int
    pool_bytes: int

    @classmethod
    def of(cls, device: torch.device) -> "Room | None":
        """Measure the free memory of a device; None for a CPU, whose memory is not limited."""
        limit = memory_limit(device)
        return None if limit is None else cls(torch.cuda.mem_get_info(device)[0], limit)


def largest_frames_per_step(
    model: ModelConfig,
    stream: StreamConfig,
    size: Size,
    resize: ResizeMode,
    room: Room,
    choices: Sequence[int] = FRAMES_PER_STEP,
) -> int:
    """The first of `choices` for which the stream's cache and a step's activations fit in memory.

    Args:
        model: the model.
        stream: the stream's settings; `run_frames` is ignored.
        size: width and height of the frames as captured.
        resize: how the frames are fitted to the model's image size.
        room: the free memory.
        choices: numbers of frames per step to try, in this order.

    Raises:
        AdmissionError: not even the last choice fits; the message states the memory needed.
        ValueError: an image of this size cannot be fitted to the model.
    """
    geometry = resize_geometry(size, resize, model.image_width, model.network.patch_size)
    tokens, shape = TokenShape.of(model.network, geometry.grid).seeing(stream.window), pool_shape(model)
    for frames in choices:
        layout = tokens.layout(replace(stream, run_frames=frames))
        memory = shape.bytes_of(layout) + pose_bytes(model, replace(stream, run_frames=frames), model.outputs)
        working = frames * step_bytes(model, tokens) + head_bytes(model, tokens)
        if memory <= room.pool_bytes and memory + working <= room.free_bytes:
            return frames
    one_frame = gib(step_bytes(model, tokens) + head_bytes(model, tokens))
    raise AdmissionError(
        f"not enough memory for the recording: its stream needs {shape.describe(layout)}, and may use "
        f"{gib(room.pool_bytes)}; the stream and a step of one frame ({one_frame}) must fit in "
        f"{gib(room.free_bytes)} together"
    )


def step_bytes(model: ModelConfig, tokens: TokenShape) -> int:
    """Approximate memory in bytes that a step needs per frame, for a block's activations and for the outputs."""
    heads = make_heads(model, blank_model(model))
    kept = len(heads.layers) * tokens.parts * 4  # float32 tokens of the layers that are read
    published = sum(output.nbytes for output in heads.outputs(tokens))
    return tokens.row_tokens * tokens.channels * (BLOCK_BYTES + kept) + published


def head_bytes(model: ModelConfig, tokens: TokenShape) -> int:
    """Approximate memory in bytes that a step's heads need for depth or points, however many frames the step has."""
    if not MAP_KINDS.intersection(model.outputs):
        return 0
    rows, columns = tokens.grid
    pixels = rows * columns * model.network.patch_size**2
    return FRAMES_AT_ONCE * pixels * model.network.dense_head.features // 2 * MAP_BYTES


def pose_bytes(model: ModelConfig, stream: StreamConfig, outputs: Collection[OutputKind]) -> int:
    """Size in bytes of the memory that the camera head keeps of a stream with these outputs."""
    return pose_pool_shape(model).bytes_of(pose_layout(stream)) if OutputKind.POSE in outputs else 0
