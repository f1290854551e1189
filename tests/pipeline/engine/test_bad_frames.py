"""Non-finite numbers reset the memory of their own stream, and change not one bit of any other stream."""

from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor, nn

from retinad.pipeline.config import CaptureMode, ResizeMode, StreamConfig
from retinad.pipeline.delivery import Delivery
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frame_queue import FrameQueues
from retinad.pipeline.frames import Features, Flag

from .engine_rig import CONFIG, alone, assert_same, frame, good, model_of

STREAM = StreamConfig(scale_frames=1, window=2, history_frames=2)
EPOCHS = replace(STREAM, epoch_frames=4)


def spoil_white_images(module: nn.Module, arguments: tuple[Tensor], output: Tensor) -> Tensor:
    """Sets one token of each white image to NaN, in the embedding."""
    white = arguments[0].flatten(1).amin(1) > 2  # normalised white is 2.2 to 2.7, by channel
    output = output.clone()
    output[white, 3, 1] = float("nan")
    return output


def run(bad_steps: set[int], stream: StreamConfig) -> dict[str, list[Features]]:
    """Three streams in one batch; "a" is white at some steps. A first block is one frame, so batches stay alike."""
    found: dict[str, list[Features]] = {"a": [], "b": [], "c": []}
    with Engine(CONFIG) as engine:
        model_of(engine).get_submodule("patch_embed").register_forward_hook(spoil_white_images)
        for camera, config in (("a", stream), ("b", EPOCHS), ("c", STREAM)):
            engine.open_stream(camera, config, ResizeMode.CROP)
        for number in range(12):
            frames = [frame(camera, number) for camera in "abc"]
            if number in bad_steps:
                frames[0] = replace(frames[0], pixels=np.full_like(frames[0].pixels, 255))
            for record in good(engine.step(frames)):
                found[record.stamp.camera].append(record)
        assert engine.statistics().nan_frames == len(bad_steps)
    return found


@pytest.mark.parametrize("stream", [STREAM, EPOCHS], ids=["endless", "epochs"])
@pytest.mark.parametrize("bad_steps", [{0}, {5}, {3, 4, 5}, {11}], ids=str)
def test_other_streams_are_bit_identical(bad_steps: set[int], stream: StreamConfig) -> None:
    spoilt, sound = run(bad_steps, stream), run(set(), stream)
    for camera in "bc":
        for actual, expected in zip(spoilt[camera], sound[camera], strict=True):
            assert actual.flags == expected.flags
            assert_same(actual, expected, tolerance=0)
    assert {n for n, record in enumerate(spoilt["a"]) if Flag.NAN in record.flags} == bad_steps
    resets = {n for n, record in enumerate(spoilt["a"]) if Flag.RESET in record.flags}
    assert {n + 1 for n in bad_steps if n < 11} <= resets


def test_the_stream_itself_continues_like_a_new_one() -> None:
    for actual, expected in zip(
        run({5}, EPOCHS)["a"][6:], alone([frame("a", n) for n in range(6, 12)], EPOCHS), strict=True
    ):
        assert (actual.epoch_frame, actual.keyframe) == (expected.epoch_frame, expected.keyframe)
        assert_same(actual, expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("part", ["frame_blocks.0.mlp", "global_blocks.0.attn", "global_blocks.1.mlp"])
def test_one_bad_number_anywhere_is_detected(part: str, bad: float) -> None:
    def spoil(module: nn.Module, arguments: object, output: Tensor) -> Tensor:
        output = output.clone()
        output[0, -1, -1] = bad
        return output

    with Engine(CONFIG) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP)
        model_of(engine).get_submodule(part).register_forward_hook(spoil)
        assert Flag.NAN in good(engine.step([frame("a", 0)]))[0].flags


class Sink:
    def publish_features(self, features: Features, **numbers: int) -> None:
        return


def test_they_are_counted_among_the_published() -> None:
    queues = FrameQueues()
    queue = queues.open("a", CaptureMode.LIVE, 2)
    records = run({3, 4, 5}, STREAM)["a"]
    queue.counters.captured = len(records)
    Delivery(queues, Sink()).deliver(records, 0)
    assert (queue.counters.published, queue.counters.nan, queue.counters.in_flight) == (12, 3, 0)
