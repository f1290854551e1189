"""A step takes as many frames as fit in the device's free memory, according to the pool's own calculation."""

from dataclasses import replace

import pytest
import torch

from retinad.pipeline.config import ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.admission import pool_shape
from retinad.pipeline.engine.batch_size import (
    FRAMES_PER_STEP,
    Room,
    head_bytes,
    largest_frames_per_step,
    pose_bytes,
    step_bytes,
)
from retinad.pipeline.engine.token_shape import TokenShape
from retinad.pipeline.errors import AdmissionError
from retinad.pipeline.frames import OutputKind
from retinad.pipeline.model.presets import LINGBOT_MAP

MODEL = ModelConfig(dtype="bfloat16")
SIZE = (640, 480)
TOKENS = TokenShape.of(MODEL.network, (28, 37))
PLENTY = 1 << 50


def memory(frames: int, stream: StreamConfig = LINGBOT_MAP.stream) -> int:
    return pool_shape(MODEL).bytes_of(TOKENS.layout(replace(stream, run_frames=frames)))


def chosen(room: Room) -> int:
    return largest_frames_per_step(MODEL, LINGBOT_MAP.stream, SIZE, ResizeMode.CROP, room)


@pytest.mark.parametrize("frames", FRAMES_PER_STEP)
def test_a_number_of_frames_is_chosen_if_its_cache_and_step_fit_to_the_byte(frames: int) -> None:
    exact = memory(frames) + frames * step_bytes(MODEL, TOKENS)
    assert chosen(Room(exact, PLENTY)) == frames
    assert chosen(Room(PLENTY, memory(frames))) == frames
    if frames > 1:
        assert chosen(Room(exact - 1, PLENTY)) < frames
        assert chosen(Room(PLENTY, memory(frames) - 1)) < frames


def test_poses_and_maps_take_memory_too() -> None:
    """The camera head keeps a token of each keyframe; the maps of some frames at a time are computed together."""
    model, stream = replace(MODEL, outputs=tuple(OutputKind)), LINGBOT_MAP.stream
    poses = pose_bytes(model, stream, model.outputs)
    assert poses == 327 * 4 * 4 * 2 * 2048 * 4  # 8 scale frames and 319 more, 4 rounds of 4 blocks, float32
    maps = head_bytes(model, TOKENS)
    assert maps == 2 * (518 * 392) * 128 * 32
    exact = memory(1) + poses + step_bytes(model, TOKENS) + maps
    assert largest_frames_per_step(model, stream, SIZE, ResizeMode.CROP, Room(exact, PLENTY), (1,)) == 1
    with pytest.raises(AdmissionError):
        largest_frames_per_step(model, stream, SIZE, ResizeMode.CROP, Room(exact - 1, PLENTY), (1,))
    assert (head_bytes(MODEL, TOKENS), pose_bytes(MODEL, stream, MODEL.outputs)) == (0, 0)


def test_too_little_memory_for_one_frame_is_an_error_with_the_sum() -> None:
    with pytest.raises(AdmissionError, match=r"GiB for 72 frames of 1042 tokens and 256 x 6 tokens"):
        chosen(Room(PLENTY, memory(1) - 1))


def test_the_hosts_memory_is_not_limited() -> None:
    assert Room.of(torch.device("cpu")) is None
