"""Chooses the number of frames of a recording that one step processes: as many as fit in the device's free memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..cache.kv_pool import gib
from ..config import ModelConfig, ResizeMode, StreamConfig
from ..errors import AdmissionError
from ..frames import Size
from ..model.checkpoint import blank_model
from .admission import memory_limit, pool_shape
from .heads import make_heads
from .preprocess import resize_geometry
from .token_shape import TokenShape

FRAMES_PER_STEP = (32, 16, 8, 4, 2, 1)
"""Numbers of frames that are tried, the largest first."""

BLOCK_BYTES = 64
"""Size of a block's activations for each channel of each token, in bytes."""


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
        memory = shape.bytes_of(layout)
        if memory <= room.pool_bytes and memory + frames * step_bytes(model, tokens) <= room.free_bytes:
            return frames
    raise AdmissionError(
        f"not enough memory for the recording: its stream needs {shape.describe(layout)}, but may use only "
        f"{gib(room.pool_bytes)}; together with {gib(step_bytes(model, tokens))} for each frame of a step it must fit "
        f"in {gib(room.free_bytes)}"
    )


def step_bytes(model: ModelConfig, tokens: TokenShape) -> int:
    """Approximate memory in bytes that a step needs per frame, for a block's activations and for the outputs."""
    heads = make_heads(model, blank_model(model))
    kept = len(heads.layers) * tokens.parts * 4  # float32 tokens of the layers that are read
    published = sum(output.nbytes for output in heads.outputs(tokens))
    return tokens.row_tokens * tokens.channels * (BLOCK_BYTES + kept) + published
