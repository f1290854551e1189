"""One set of HorizonStream's weights serves many streams of any age, in steps of any number of frames."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from retinad.pipeline.model.horizon_stream import HorizonStream
from retinad.pipeline.model.network import LayerOutput

from .golden import random_images
from .horizon_golden import horizon, network, new_pool, new_state, outputs_of, run_step

TOLERANCE = 2e-5
"""Absolute, on outputs of about 3: float32 matrix products round differently for another number of rows, and the camera
head amplifies it."""

SIZE = (28, 42)
WINDOW = 3


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def model() -> HorizonStream:
    small = network(5)
    assert small.horizon is not None
    return horizon(replace(small, horizon=replace(small.horizon, memory_layers=(1, 3))))


def everything(model: HorizonStream, layers: tuple[LayerOutput, ...]) -> Tensor:
    """All outputs of a step of F frames, with a metric scale for each frame: [F, n]."""
    out = outputs_of(model, layers, SIZE, joint=False)
    parts = (out.features, out.pose_features, out.camera_rows, out.metric_scale, out.depth, out.depth_conf)
    return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1)


def pieces(video: Tensor, size: int = 1) -> list[Tensor]:
    return [video[start : start + size] for start in range(0, len(video), size)]


def run_alone(model: HorizonStream, video: Tensor, first: int, window: int = WINDOW) -> list[Tensor]:
    """The outputs of a stream whose first step has `first` frames, and every later one a single frame."""
    state = new_state(model, window, *SIZE)
    parts = [video[:first], *pieces(video[first:])]
    found = [everything(model, run_step(model, [state], [part])) for part in parts]
    return [row for part in found for row in part]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


def test_steps_of_many_frames_equal_steps_of_one(model: HorizonStream) -> None:
    """Positions in time wrap after 5 frames, and the ring of pages after 6."""
    video = random_images(3, 20, *SIZE)
    alone = run_alone(model, video, WINDOW)
    for per_step in (2, 4):
        state = new_state(model, WINDOW, *SIZE, per_step=per_step)
        done = 0
        for part in (video[:WINDOW], *pieces(video[WINDOW:], per_step)):
            for row in everything(model, run_step(model, [state], [part])):
                close(row, alone[done])
                done += 1
        assert done == len(video)


def test_streams_of_any_age_in_one_step_equal_each_alone(model: HorizonStream) -> None:
    """First steps, which are not causal, run beside later ones; a third stream joins with two frames at once."""
    videos = [random_images(seed, 12, *SIZE) for seed in range(3)]
    alone = [run_alone(model, video, WINDOW) for video in videos]
    pool = new_pool(model)
    states = [new_state(model, WINDOW, *SIZE, pool=pool, per_step=2) for _ in videos]
    done = [0, 0, 0]
    for turn in range(8):
        joined = [number for number in range(3) if turn >= 2 * number and done[number] < 12]
        counts = [WINDOW if not done[n] else min(1 + (n == 2), 12 - done[n]) for n in joined]
        parts = [videos[n][done[n] : done[n] + count] for n, count in zip(joined, counts, strict=True)]
        rows = everything(model, run_step(model, [states[n] for n in joined], parts)).split_with_sizes(counts)
        for number, count, found in zip(joined, counts, rows, strict=True):
            for offset in range(count):
                close(found[offset], alone[number][done[number] + offset])
            done[number] += count
    assert done == [10, 8, 9]


@pytest.mark.parametrize("window", [1, WINDOW])
def test_a_stream_may_begin_with_a_single_frame(model: HorizonStream, window: int) -> None:
    """The public code cannot run these. The window then grows by a frame a step."""
    video = random_images(5, 6, *SIZE)
    state = new_state(model, window, *SIZE)
    for number, image in enumerate(video):
        layers = run_step(model, [state], [image[None]])
        assert layers[-1].slots is not None
        assert layers[-1].slots.tokens.shape[1] == min(window, number + 1)
        assert everything(model, layers).isfinite().all()


def test_square_images_run(model: HorizonStream) -> None:
    """The public code cannot run these."""
    state = new_state(model, WINDOW, 42, 42)
    for part in random_images(6, 5, 42, 42).tensor_split((WINDOW,)):
        for image in (part,) if len(part) == WINDOW else pieces(part):
            out = outputs_of(model, run_step(model, [state], [image]), (42, 42), joint=False)
            assert out.depth.shape[1:] == (42, 42)
            assert out.depth.isfinite().all()


def test_what_a_frame_sees_of_the_past_is_the_window_and_the_delta_state(model: HorizonStream) -> None:
    """Two streams with other first frames differ as long as the state remembers them; without it, they become equal."""
    videos = [random_images(seed, 12, *SIZE) for seed in (7, 8)]
    videos[1][2:] = videos[0][2:]
    last = [run_alone(model, video, WINDOW)[-1] for video in videos]
    assert not torch.equal(*last)
    forgetful = horizon(network(5, horizon=replace(model.horizon, memory_layers=())))
    # Each block widens what a frame's tokens depend on by a window: after 4 of them, frame 11 still sees frame 3.
    last = [run_alone(forgetful, video, WINDOW)[-1] for video in videos]
    assert torch.equal(*last)


def test_the_memory_of_a_stream_does_not_grow(model: HorizonStream) -> None:
    state = new_state(model, WINDOW, *SIZE)
    video = random_images(9, 16, *SIZE)
    run_step(model, [state], [video[:WINDOW]])
    pool = state.pool
    before = pool.nbytes, pool.version
    for image in pieces(video[WINDOW:]):
        run_step(model, [state], [image])
    assert (pool.nbytes, pool.version) == before
    assert state.window.committed == len(video)
