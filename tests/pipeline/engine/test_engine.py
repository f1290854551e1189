"""The engine: every frame has one outcome, cameras do not affect each other, and results equal the model's."""

import random
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from retinad.pipeline.config import OutputConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.engine import Engine, Outcome
from retinad.pipeline.engine.preprocess import preprocess, resize_geometry
from retinad.pipeline.errors import DeviceError, ModelError
from retinad.pipeline.frames import CropPlace, Features, Flag, FrameStamp

from ..model.golden import new_state, run_stream
from .engine_rig import CONFIG, NETWORK, STREAM, alone, assert_same, bad, frame, good, model_of, play


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(CONFIG) as engine:
        yield engine


# Records


def test_features_equal_the_model_called_directly(engine: Engine) -> None:
    engine.open_stream("a", STREAM, ResizeMode.CROP)
    frames = [frame("a", number) for number in range(9)]
    records = play(engine, frames)
    geometry = resize_geometry((64, 48), ResizeMode.CROP, CONFIG.image_width, 14)
    with torch.inference_mode():
        images = torch.stack([preprocess(one.pixels, geometry, torch.device("cpu")) for one in frames])
        expected = run_stream(model_of(engine), new_state(model_of(engine), STREAM, 42, 56), images)
    assert [record.stamp for record in records] == [one.stamp for one in frames]
    for record, tokens in zip(records, expected, strict=True):
        for layer in range(2):
            patch = next(t for t in record.tensors if t.name == f"layer{layer}/patch")
            assert patch.data.shape == (3, 4, 64)
            np.testing.assert_array_equal(patch.data.reshape(12, 64), tokens[layer, 6:].numpy())


def test_the_first_frames_are_published_together_and_flagged(engine: Engine) -> None:
    engine.open_stream("a", StreamConfig(scale_frames=3, window=2), ResizeMode.CROP)
    counts = [good(engine.step([frame("a", number)])) for number in range(5)]
    assert [len(records) for records in counts] == [0, 0, 3, 1, 1]
    records = [record for step in counts for record in step]
    assert [record.epoch_frame for record in records] == [0, 1, 2, 3, 4]
    assert [Flag.WARMUP in record.flags for record in records] == [True, True, True, False, False]
    assert all(Flag.RANDOM_WEIGHTS in record.flags and Flag.RESET not in record.flags for record in records)
    assert all(record.epoch == 0 and record.keyframe for record in records)


def test_a_record_says_how_the_frame_was_resized(engine: Engine) -> None:
    engine.open_stream("a", StreamConfig(scale_frames=1), ResizeMode.PAD)
    (record,) = good(engine.step([frame("a", 0, size=(64, 32))]))
    geometry = resize_geometry((64, 32), ResizeMode.PAD, 56, 14)
    assert (record.model_size, record.grid, record.to_source) == ((56, 56), (4, 4), geometry.to_source)


def test_a_record_of_a_cropped_frame_refers_to_the_whole_one(engine: Engine) -> None:
    """The features are those of the part, and a model pixel is at the source pixel that it was made from."""
    engine.open_stream("a", StreamConfig(scale_frames=1), ResizeMode.CROP)
    engine.open_stream("b", StreamConfig(scale_frames=1), ResizeMode.CROP)
    whole = frame("a", 0, size=(64, 32))
    place = CropPlace(left=10, top=5, captured_size=(200, 100))
    part = frame("b", 0, size=(64, 32))
    part = replace(part, stamp=replace(part.stamp, crop=place), pixels=whole.pixels)
    (of_whole,), (of_part,) = good(engine.step([whole])), good(engine.step([part]))
    np.testing.assert_array_equal(of_part.tensors[0].data, of_whole.tensors[0].data)
    (a, b, c), (d, e, f) = of_whole.to_source
    assert of_part.to_source == ((a, b, c + 10), (d, e, f + 5))
    assert (of_part.stamp.captured_size, of_part.stamp.source_size) == ((200, 100), (64, 32))
    assert of_whole.stamp.captured_size == (64, 32)


def test_a_record_says_where_its_time_was_spent(engine: Engine) -> None:
    engine.open_stream("a", StreamConfig(scale_frames=1), ResizeMode.CROP)
    old = frame("a", 0)
    old = replace(old, stamp=replace(old.stamp, capture_monotonic_ns=old.stamp.capture_monotonic_ns - 1_000_000_000))
    began_ns = time.monotonic_ns()
    (record,) = good(engine.step([old]))
    took_us = (time.monotonic_ns() - began_ns) // 1000
    assert set(record.latency_us) == {"queue", "preprocess", "model"}
    assert 1_000_000 <= record.latency_us["queue"] < 10_000_000
    spent_us = [record.latency_us["preprocess"], record.latency_us["model"]]
    assert min(spent_us) > 0
    assert sum(spent_us) <= took_us


def test_keyframes_are_marked(engine: Engine) -> None:
    engine.open_stream("a", StreamConfig(scale_frames=2, window=2, keyframe_interval=3), ResizeMode.CROP)
    records = play(engine, [frame("a", number) for number in range(9)])
    assert [record.keyframe for record in records] == [True, True, True, False, False, True, False, False, True]
    assert engine.statistics().streams[0].keyframes == 5


def test_the_end_of_a_connection_flushes_its_own_frames_only(engine: Engine) -> None:
    """A late flush would cut the first block of the next connection short."""
    engine.open_stream("a", StreamConfig(scale_frames=2, window=2), ResizeMode.CROP)
    assert engine.flush_connection("a", 0) == engine.flush_connection("nobody", 0) == []
    engine.step([frame("a", 0)])
    (record,) = good(engine.flush_connection("a", 0))
    assert Flag.WARMUP in record.flags
    engine.step([frame("a", 0, stream_epoch=1)])
    assert engine.flush_connection("a", 0) == []
    assert len(good(engine.step([frame("a", 1, stream_epoch=1)]))) == 2


def test_flush_runs_waiting_frames_and_the_stream_continues(engine: Engine) -> None:
    engine.open_stream("a", StreamConfig(scale_frames=4, window=2), ResizeMode.CROP)
    assert engine.flush("a") == engine.flush("nobody") == []
    frames = [frame("a", number) for number in range(4)]
    assert [engine.step([one]) for one in frames[:2]] == [[], []]
    records = [*good(engine.flush("a")), *play(engine, frames[2:])]
    assert [record.epoch_frame for record in records] == [0, 1, 2, 3]
    assert [Flag.WARMUP in record.flags for record in records] == [True, True, False, False]
    assert engine.flush("a") == []


# Many cameras


def test_cameras_in_one_step_equal_each_alone(engine: Engine) -> None:
    """Cameras of different ages, sizes, resize modes and settings, which join and leave between steps."""
    cameras = {
        "a": (STREAM, ResizeMode.CROP, (64, 48), 0),
        "b": (StreamConfig(1, 2, keyframe_interval=2), ResizeMode.CROP, (64, 48), 2),
        "c": (StreamConfig(3, 1), ResizeMode.PAD, (64, 48), 3),
        "d": (STREAM, ResizeMode.CROP, (40, 48), 5),
    }
    found: dict[str, list[Features]] = {camera: [] for camera in cameras}
    for number in range(14):
        present = [camera for camera, (_, _, _, start) in cameras.items() if start <= number < start + 9]
        for camera in present:
            if number == cameras[camera][3]:
                engine.open_stream(camera, *cameras[camera][:2])
        frames = [frame(camera, number - cameras[camera][3], cameras[camera][2]) for camera in present]
        for record in good(engine.step(frames)):
            found[record.stamp.camera].append(record)
        for camera in present:
            if number == cameras[camera][3] + 8:
                engine.close_stream(camera)
    for camera, (stream, resize, size, _) in cameras.items():
        expected = alone([frame(camera, number, size) for number in range(9)], stream, resize)
        assert len(found[camera]) == 9
        for actual, other in zip(found[camera], expected, strict=True):
            assert_same(actual, other)


@pytest.mark.parametrize(("max_batch", "forwards"), [(8, 1), (2, 2), (1, 3)])
def test_equal_sizes_run_in_one_forward_pass_of_at_most_max_batch(max_batch: int, forwards: int) -> None:
    with Engine(replace(CONFIG, max_batch=max_batch)) as engine:
        for camera in "abc":
            engine.open_stream(camera, StreamConfig(scale_frames=1), ResizeMode.CROP)
        good(engine.step([frame(camera, 0) for camera in "abc"]))
        assert engine.statistics().forwards == forwards


# New epochs


def test_a_new_size_resets_the_stream_after_waiting_frames_ran(engine: Engine) -> None:
    engine.open_stream("a", StreamConfig(scale_frames=3, window=2), ResizeMode.CROP)
    small, large = [frame("a", n) for n in range(2)], [frame("a", n, size=(96, 48)) for n in range(2, 6)]
    records = play(engine, [*small, *large])
    assert [(record.epoch, record.epoch_frame) for record in records] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (1, 2),
        (1, 3),
    ]
    assert [Flag.RESET in record.flags for record in records] == [False, False, True, False, False, False]
    assert [Flag.SIZE_CHANGED in record.flags for record in records] == [False, False, True, False, False, False]
    for actual, expected in zip(records[2:], alone(large, StreamConfig(scale_frames=3, window=2)), strict=True):
        assert_same(actual, expected, tolerance=0)


def test_a_reconnected_source_resets_the_stream(engine: Engine) -> None:
    engine.open_stream("a", STREAM, ResizeMode.CROP)
    play(engine, [frame("a", number) for number in range(5)])
    again = [frame("a", number, stream_epoch=1, seed=50 + number) for number in range(4)]
    records = play(engine, again)
    assert [record.epoch for record in records] == [1] * 4
    assert records[0].flags == {Flag.RESET, Flag.WARMUP, Flag.RANDOM_WEIGHTS}
    for actual, expected in zip(records, alone(again), strict=True):
        assert_same(actual, expected, tolerance=0)


# Faults


def test_an_unusable_frame_fails_alone(engine: Engine) -> None:
    for camera in "ab":
        engine.open_stream(camera, STREAM, ResizeMode.CROP)
    frames = [frame("a", number) for number in range(5)]
    play(engine, frames[:3])
    torn = replace(frame("a", 3), pixels=np.zeros((10, 64, 3), np.uint8))
    thin, stray = frame("b", 0, size=(1000, 4)), frame("nobody", 0)
    reasons = [failure.reason for failure in bad(engine.step([torn, thin, stray]))]
    assert [part in reason for part, reason in zip(("expected uint8", "too thin", "no stream"), reasons, strict=True)]
    records = play(engine, [frames[3]])
    assert (records[0].epoch, records[0].epoch_frame) == (0, 3)
    assert_same(records[0], alone(frames[:4])[3], tolerance=0)


class Fault:
    """Raises in the `call`-th run of a module."""

    def __init__(self, module: nn.Module, error: Exception) -> None:
        self._error = error
        self._hook = module.register_forward_pre_hook(self._raise)

    def _raise(self, module: nn.Module, arguments: object) -> None:
        self._hook.remove()
        raise self._error


@pytest.mark.parametrize("part", ["patch_embed", "frame_blocks.0", "global_blocks.0", "global_blocks.1.mlp"])
@pytest.mark.parametrize("first_block", [True, False])
def test_a_failing_forward_pass_resets_its_streams_and_no_other(engine: Engine, part: str, first_block: bool) -> None:
    """Wherever it fails, no layer continues with a memory that other layers lack."""
    sizes = {"a": (64, 48), "b": (64, 48), "c": (40, 48)}
    for camera in sizes:
        engine.open_stream(camera, STREAM, ResizeMode.CROP)
    before = 1 if first_block else 6
    for number in range(before):
        engine.step([frame(camera, number, size) for camera, size in sizes.items()])
    Fault(model_of(engine).get_submodule(part), RuntimeError("injected"))
    outcomes = engine.step([frame(camera, before, size) for camera, size in sizes.items()])
    failed = bad(outcomes)
    assert {failure.stamp.camera for failure in failed} == {"a", "b"}
    assert len(failed) == (4 if first_block else 2)
    assert all("injected" in failure.reason for failure in failed)
    later = [frame("a", number, seed=90 + number) for number in range(before + 1, before + 5)]
    records = play(engine, later)
    assert (records[0].epoch, Flag.RESET in records[0].flags) == (1, True)
    for actual, expected in zip(records, alone(later), strict=True):
        assert_same(actual, expected, tolerance=0)
    undisturbed = alone([frame("c", number, sizes["c"]) for number in range(before + 2)])[-1]
    assert_same(play(engine, [frame("c", before + 1, sizes["c"])])[-1], undisturbed, tolerance=0)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError("none"), KeyError("x")])
def test_running_out_of_memory_fails_the_frames_only(engine: Engine, error: Exception) -> None:
    engine.open_stream("a", StreamConfig(scale_frames=1), ResizeMode.CROP)
    Fault(model_of(engine), error)
    (failure,) = bad(engine.step([frame("a", 0)]))
    assert failure.reason.startswith(type(error).__name__)
    assert len(play(engine, [frame("a", 1)])) == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: device-side assert triggered"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
    ],
)
@pytest.mark.parametrize("call", ["step", "flush", "warm_up"])
def test_a_broken_device_ends_the_engine(engine: Engine, error: Exception, call: str) -> None:
    engine.open_stream("a", STREAM, ResizeMode.CROP)
    engine.step([frame("a", 0)])
    Fault(model_of(engine), error)
    calls: dict[str, Callable[[], object]] = {
        "step": lambda: engine.step([frame("a", 1)]),
        "flush": lambda: engine.flush("a"),
        "warm_up": lambda: engine.warm_up([(64, 48)]),
    }
    with pytest.raises(DeviceError, match="cpu failed: CUDA error"):
        calls[call]()


def poison_white_images(module: nn.Module, arguments: tuple[Tensor], output: Tensor) -> Tensor:
    white = arguments[0].flatten(1).amin(1) > 2  # normalised white is 2.2 to 2.7, by channel
    return output.masked_fill(white[:, None, None], float("nan"))


@pytest.mark.parametrize("when", [1, 5])
def test_non_finite_numbers_are_flagged_and_reset_their_stream_alone(engine: Engine, when: int) -> None:
    model_of(engine).get_submodule("patch_embed").register_forward_hook(poison_white_images)
    for camera in "ab":
        engine.open_stream(camera, STREAM, ResizeMode.CROP)
    found: dict[str, list[Features]] = {"a": [], "b": []}
    for number in range(10):
        white = replace(frame("a", number), pixels=np.full((48, 64, 3), 255, np.uint8))
        frames = [white if number == when else frame("a", number), frame("b", number)]
        for record in good(engine.step(frames)):
            found[record.stamp.camera].append(record)
    assert [record.stamp.source_seq for record in found["a"]] == list(range(10))
    flagged = [record.stamp.source_seq for record in found["a"] if Flag.NAN in record.flags]
    assert flagged == ([0, 1] if when == 1 else [5])  # frames of a first block all see each other
    assert [record.epoch for record in found["a"]] == [0] * (when + 1) + [1] * (9 - when)
    after = [frame("a", number) for number in range(when + 1, 10)]
    for actual, expected in zip(found["a"][when + 1 :], alone(after), strict=True):
        assert_same(actual, expected)
    for actual, expected in zip(found["b"], alone([frame("b", n) for n in range(10)]), strict=True):
        assert_same(actual, expected)
    assert engine.statistics().nan_frames == len(flagged)


def test_every_frame_has_exactly_one_outcome_whatever_happens(engine: Engine) -> None:
    """captured = published + failed, per camera and in order, through faults, new sizes and new connections."""
    rng = random.Random(0)
    cameras = {"a": StreamConfig(4, 2), "b": StreamConfig(1, 1), "c": StreamConfig(3, 2, keyframe_interval=2)}
    for camera, stream in cameras.items():
        engine.open_stream(camera, stream, ResizeMode.CROP)
    sizes, epochs = dict.fromkeys(cameras, (64, 48)), dict.fromkeys(cameras, 0)
    sent: list[FrameStamp] = []
    outcomes: list[Outcome] = []
    for number in range(120):
        for camera in cameras:
            sizes[camera] = rng.choice([(64, 48), (40, 48), (1000, 4)]) if rng.random() < 0.1 else sizes[camera]
            epochs[camera] += rng.random() < 0.05
        if rng.random() < 0.1:
            Fault(model_of(engine), RuntimeError("injected"))
        present = rng.sample(sorted(cameras), rng.randint(1, 3))
        frames = [frame(camera, number, sizes[camera], epochs[camera]) for camera in present]
        sent += [one.stamp for one in frames]
        outcomes += engine.step(frames)
    outcomes += [outcome for camera in cameras for outcome in engine.flush(camera)]
    assert len(outcomes) == len(sent)
    assert {outcome.stamp for outcome in outcomes} == set(sent)
    statistics = engine.statistics()
    assert (statistics.features, statistics.failures) == (len(outcomes) - len(bad(outcomes)), len(bad(outcomes)))
    for camera in cameras:
        records = [o for o in outcomes if isinstance(o, Features) and o.stamp.camera == camera]
        assert [r.stamp.source_seq for r in records] == sorted(r.stamp.source_seq for r in records)
        order = [(record.epoch, record.epoch_frame) for record in records]
        assert order == sorted(set(order))


# Memory


def test_memory_stays_constant_over_thousands_of_frames() -> None:
    """The reference fails at frame 112 of 4-patch images sized for one frame, and at 1,024 for lack of positions."""
    stream = StreamConfig(scale_frames=1, window=2, history_frames=50)
    with Engine(
        replace(CONFIG, image_width=28, network=replace(NETWORK, depth=1), output=OutputConfig((0,)))
    ) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP)
        frames = [frame("a", number, size=(28, 28)) for number in range(10)]
        sizes = set()
        for number in range(3000):
            (record,) = good(engine.step([frames[number % 10]]))
            sizes.add(engine.statistics().streams[0].nbytes)
        assert len(sizes) == 1
        assert record.epoch_frame == 2999
        assert all(np.isfinite(tensor.data).all() for tensor in record.tensors)
        assert engine.statistics().streams[0].history_dropped == 3000 - 1 - 2 - 50


def test_pixels_are_released_after_their_step(engine: Engine) -> None:
    engine.open_stream("a", StreamConfig(scale_frames=4), ResizeMode.CROP)
    one = frame("a", 0)
    pixels = weakref.ref(one.pixels)
    assert engine.step([one]) == []
    del one
    assert pixels() is None


def test_records_are_never_overwritten(engine: Engine) -> None:
    engine.open_stream("a", StreamConfig(scale_frames=1, window=1), ResizeMode.CROP)
    (first,) = play(engine, [frame("a", 0)])
    copies = [tensor.data.copy() for tensor in first.tensors]
    play(engine, [frame("a", number) for number in range(1, 6)])
    assert all(np.array_equal(tensor.data, copy) for tensor, copy in zip(first.tensors, copies, strict=True))
    assert all(tensor.data.flags.c_contiguous for tensor in first.tensors)


def test_warming_up_does_not_affect_streams(engine: Engine) -> None:
    engine.open_stream("a", STREAM, ResizeMode.CROP)
    frames = [frame("a", number) for number in range(4)]
    records = play(engine, frames[:3])
    engine.warm_up([(64, 48), (1280, 720)])
    records += play(engine, frames[3:])
    for actual, expected in zip(records, alone(frames), strict=True):
        assert_same(actual, expected, tolerance=0)
    with pytest.raises(ValueError, match="too thin"):
        engine.warm_up([(1000, 4)])


def test_statistics_and_description_say_what_runs(engine: Engine) -> None:
    engine.open_stream("a", STREAM, ResizeMode.CROP)
    play(engine, [frame("a", 0)])
    statistics = engine.statistics()
    assert (statistics.streams[0].waiting, statistics.streams[0].frames, statistics.streams[0].nbytes) == (1, 1, 0)
    assert (engine.description.name, engine.description.weights) == ("test", "random:0")
    assert engine.description.mixers == ("attention", "attention")
    assert engine.description.parameters == sum(p.numel() for p in model_of(engine).parameters())
    engine.close_stream("a")
    engine.close_stream("a")
    assert engine.statistics().streams == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"output": OutputConfig(layers=(0, 2))}, "from 0 to 1"),
        ({"output": OutputConfig(layers=(1, 0))}, "ascending"),
        ({"output": OutputConfig(layers=())}, "ascending"),
        ({"output": OutputConfig(layers=(0,), tokens=())}, "distinct groups"),
        ({"output": OutputConfig(layers=(0,), pool=0)}, "at least 1"),
        ({"image_width": 60}, "multiple of the patch size"),
        ({"max_batch": 0}, "at least 1"),
    ],
)
def test_an_impossible_configuration_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Engine(replace(CONFIG, **change))  # type: ignore[arg-type]


def test_a_missing_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.safetensors"):
        Engine(replace(CONFIG, checkpoint=tmp_path / "none.safetensors"))


def test_every_frame_says_how_much_it_attended_to() -> None:
    stream = StreamConfig(scale_frames=2, window=3, keyframe_interval=2, history_frames=2)
    features = alone([frame("a", number) for number in range(16)], stream)
    given = [astuple(one.context) for one in features if one.context is not None]
    assert given[:2] == [(2, 0, 0)] * 2, "a first block"
    assert [one.keyframe for one in features[2:6]] == [True, False, True, False]
    assert given[2:6] == [(3, 0, 0), (4, 0, 0), (4, 0, 0), (5, 0, 0)]
    assert given[8:12] == [(5, 1, 0), (6, 1, 0), (5, 2, 0), (6, 2, 0)], "the window is full, then the history"
    assert given[-2:] == [(5, 2, 2), (6, 2, 2)]


def test_without_attention_across_frames_there_is_no_context() -> None:
    config = replace(CONFIG, network=replace(NETWORK, mixers=("kda",)))
    with Engine(config) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP)
        features = play(engine, [frame("a", number) for number in range(4)])
    assert [one.context for one in features] == [None] * 4
