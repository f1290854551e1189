"""How many frames of a recording one step may take: as many as the device's free memory holds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..cache.kv_pool import gib
from ..config import ModelConfig, ResizeMode, StreamConfig
from ..errors import AdmissionError
from ..frames import Size
from ..model.devices import torch_dtype
from .admission import memory_limit, pool_shape
from .outputs import TokenShape
from .preprocess import resize_geometry

RUNS = (32, 16, 8, 4, 2, 1)
"""What is tried, the longest first."""

BLOCK_BYTES = 64
"""Bytes that a block computes with, for each channel of each token."""


@dataclass(frozen=True, slots=True)
class Room:
    """A device's memory with the weights loaded.

    Attributes:
        free_bytes: that nothing holds.
        pool_bytes: of them, what the streams' memories may take.
    """

    free_bytes: int
    pool_bytes: int

    @classmethod
    def of(cls, device: torch.device) -> "Room | None":
        """A device's; None where the host's memory is meant, which nobody counts."""
        limit = memory_limit(device)
        return None if limit is None else cls(torch.cuda.mem_get_info(device)[0], limit)


def longest_run(
    model: ModelConfig, stream: StreamConfig, size: Size, resize: ResizeMode, room: Room, runs: Sequence[int] = RUNS
) -> int:
    """The first of `runs` whose memory and step fit.

    Args:
        model: what runs.
        stream: what the stream remembers; its `run_frames` does not count.
        size: width and height of the pictures as captured.
        resize: how they are fitted.
        room: what there is.
        runs: what is tried, in this order.

    Raises:
        AdmissionError: not even the last fits; the message has the sum.
        ValueError: a picture of this size cannot be fitted to the model.
    """
    geometry = resize_geometry(size, resize, model.image_width, model.network.patch_size)
    tokens, shape = TokenShape.of(model.network, geometry.grid), pool_shape(model)
    for run in runs:
        layout = tokens.layout(replace(stream, run_frames=run))
        memory = shape.bytes_of(layout)
        if memory <= room.pool_bytes and memory + run * step_bytes(model, tokens) <= room.free_bytes:
            return run
    raise AdmissionError(
        f"no memory for the recording: its stream takes {shape.describe(layout)}, and a step "
        f"{gib(step_bytes(model, tokens))}; {gib(room.pool_bytes)} and {gib(room.free_bytes)} are there"
    )


def step_bytes(model: ModelConfig, tokens: TokenShape) -> int:
    """Bytes, about, that a step computes with for each of its frames: in a block, and for what is published of it."""
    output = model.output
    kept = len(output.layers) * tokens.parts * (4 + torch_dtype(output.dtype).itemsize)
    return tokens.tokens * tokens.channels * (BLOCK_BYTES + kept)
