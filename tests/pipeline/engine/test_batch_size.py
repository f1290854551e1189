"""A run is as long as the device's free memory allows, by the pool's own sums."""

from dataclasses import replace

import pytest
import torch

from retinad.pipeline.config import ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.admission import pool_shape
from retinad.pipeline.engine.batch_size import RUNS, Room, longest_run, step_bytes
from retinad.pipeline.engine.token_shape import TokenShape
from retinad.pipeline.errors import AdmissionError
from retinad.pipeline.model.presets import LINGBOT_MAP

MODEL = ModelConfig(dtype="bfloat16")
SIZE = (640, 480)
TOKENS = TokenShape.of(MODEL.network, (28, 37))
PLENTY = 1 << 50


def memory(run: int, stream: StreamConfig = LINGBOT_MAP.stream) -> int:
    return pool_shape(MODEL).bytes_of(TOKENS.layout(replace(stream, run_frames=run)))


def chosen(room: Room) -> int:
    return longest_run(MODEL, LINGBOT_MAP.stream, SIZE, ResizeMode.CROP, room)


@pytest.mark.parametrize("run", RUNS)
def test_a_run_is_taken_where_its_memory_and_its_step_fit_to_the_byte(run: int) -> None:
    exact = memory(run) + run * step_bytes(MODEL, TOKENS)
    assert chosen(Room(exact, PLENTY)) == run
    assert chosen(Room(PLENTY, memory(run))) == run
    if run > 1:
        assert chosen(Room(exact - 1, PLENTY)) < run
        assert chosen(Room(PLENTY, memory(run) - 1)) < run


def test_no_room_for_one_frame_is_an_error_with_the_sum() -> None:
    with pytest.raises(AdmissionError, match=r"GiB for 72 frames of 1042 tokens and 256 x 6 tokens"):
        chosen(Room(PLENTY, memory(1) - 1))


def test_nobody_counts_the_hosts_memory() -> None:
    assert Room.of(torch.device("cpu")) is None
