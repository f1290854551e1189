"""Epochs: one that begins with the stream's last frames equals a new stream, and publishes no frame twice."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from retinad.pipeline.config import ModelConfig, ResizeMode, RetentionConfig, StreamConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.preprocess import preprocess, resize_geometry
from retinad.pipeline.engine.replay import ReplayBuffer
from retinad.pipeline.errors import DeviceError
from retinad.pipeline.frames import Features, Flag, Frame

from .engine_rig import CONFIG, TOLERANCE, alone, assert_same, frame, good, model_of, play

EPOCHS = StreamConfig(scale_frames=2, window=3, epoch_frames=6)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(CONFIG) as engine:
        yield engine


def epochs_of(stream: StreamConfig, frames: int) -> list[int]:
    """The number of the first frame that each epoch publishes."""
    keyframes = stream.epoch_frames - stream.scale_frames
    first = stream.scale_frames + (keyframes - 1) * stream.keyframe_interval + 1
    return [0, *range(first, frames, first - stream.scale_frames)]


def renewed(frames: Sequence[Frame], stream: StreamConfig, resize: ResizeMode = ResizeMode.CROP) -> list[Features]:
    """The expected records, from streams without epochs: each starts with the last frames of the one before."""
    records: list[Features] = []
    begins = epochs_of(stream, len(frames))
    for begin, end in itertools.pairwise([*begins, len(frames)]):
        again = min(begin, stream.scale_frames)
        part = alone(frames[begin - again : end], replace(stream, epoch_frames=0), resize)
        records += part[again:]
    return records


def assert_numbered(records: Sequence[Features], stream: StreamConfig) -> None:
    begins = epochs_of(stream, len(records))
    for number, record in enumerate(records):
        epoch = sum(begin <= number for begin in begins) - 1
        again = stream.scale_frames if epoch else 0
        assert (record.epoch, record.epoch_frame) == (epoch, number - begins[epoch] + again)
        assert (Flag.RESET in record.flags) == (number in begins[1:])
        assert (Flag.WARMUP in record.flags) == (number < stream.scale_frames)


@pytest.mark.parametrize(
    "stream",
    [
        EPOCHS,
        StreamConfig(scale_frames=1, window=1, epoch_frames=2),
        StreamConfig(scale_frames=3, window=2, epoch_frames=4),
        StreamConfig(scale_frames=2, window=2, epoch_frames=5, keyframe_interval=3),
        StreamConfig(scale_frames=3, window=2, history_frames=2, epoch_frames=9),
        StreamConfig(2, 2, retention=RetentionConfig(include_scale_frames=False), epoch_frames=5),
        StreamConfig(3, 1, 2, retention=RetentionConfig(include_scale_frames=False), epoch_frames=6),
        StreamConfig(2, 2, retention=RetentionConfig(camera_only=True), epoch_frames=7),
    ],
    ids=str,
)
def test_an_epoch_equals_a_new_stream_that_began_with_the_last_frames(engine: Engine, stream: StreamConfig) -> None:
    """Equal bit for bit. The last frames count whether or not they are keyframes, like a stream's first ones."""
    engine.open_stream("a", stream, ResizeMode.CROP)
    frames = [frame("a", number) for number in range(25)]
    records = play(engine, frames)
    assert [record.stamp for record in records] == [one.stamp for one in frames]
    assert_numbered(records, stream)
    for actual, expected in zip(records, renewed(frames, stream), strict=True):
        assert actual.keyframe == expected.keyframe
        assert_same(actual, expected, tolerance=0)


def test_streams_whose_epochs_end_at_different_steps_equal_each_alone(engine: Engine) -> None:
    """Streams of different sizes and settings, which join and leave between steps."""
    cameras = {
        "a": (EPOCHS, ResizeMode.CROP, (64, 48), 0),
        "b": (replace(EPOCHS, epoch_frames=4), ResizeMode.CROP, (64, 48), 3),
        "c": (StreamConfig(2, 1, 2, epoch_frames=4), ResizeMode.PAD, (64, 48), 1),
        "d": (StreamConfig(1, 2), ResizeMode.CROP, (64, 48), 2),
        "e": (EPOCHS, ResizeMode.CROP, (40, 48), 0),
    }
    lengths = {camera: 12 + 2 * number for number, camera in enumerate(cameras)}
    found: dict[str, list[Features]] = {camera: [] for camera in cameras}
    for step in range(26):
        ages = {camera: step - start for camera, (_, _, _, start) in cameras.items()}
        for camera in cameras:
            if ages[camera] == 0:
                engine.open_stream(camera, *cameras[camera][:2])
            elif ages[camera] == lengths[camera]:
                engine.close_stream(camera)
        present = [camera for camera in cameras if 0 <= ages[camera] < lengths[camera]]
        for record in good(engine.step([frame(camera, ages[camera], cameras[camera][2]) for camera in present])):
            found[record.stamp.camera].append(record)
    for camera, (stream, resize, size, _) in cameras.items():
        frames = [frame(camera, number, size) for number in range(lengths[camera])]
        expected = renewed(frames, stream, resize) if stream.epoch_frames else alone(frames, stream, resize)
        assert len(found[camera]) == lengths[camera]
        for actual, other in zip(found[camera], expected, strict=True):
            assert_same(actual, other, TOLERANCE)


@pytest.mark.parametrize("change", ["size", "connection"])
@pytest.mark.parametrize("when", [5, 6, 7])
def test_frames_before_a_break_are_in_no_later_epoch(engine: Engine, change: str, when: int) -> None:
    """The break comes before, at and after the end of an epoch of six frames."""
    engine.open_stream("a", EPOCHS, ResizeMode.CROP)
    before = [frame("a", number) for number in range(when)]
    size, connection = ((96, 48), 0) if change == "size" else ((64, 48), 1)
    after = [frame("a", number, size, connection) for number in range(when, when + 9)]
    records = play(engine, [*before, *after])
    assert_numbered(records[:when], EPOCHS)
    epoch = records[when - 1].epoch + 1
    assert [(record.epoch, record.epoch_frame) for record in records[when : when + 6]] == [(epoch, n) for n in range(6)]
    assert (records[when + 6].epoch, records[when + 6].epoch_frame) == (epoch + 1, 2)
    for actual, expected in zip(records[when:], renewed(after, EPOCHS), strict=True):
        assert_same(actual, expected, tolerance=0)


def test_an_epoch_that_began_with_fewer_frames_ends_like_any_other(engine: Engine) -> None:
    stream = StreamConfig(scale_frames=4, window=2, epoch_frames=6)
    engine.open_stream("a", stream, ResizeMode.CROP)
    frames = [frame("a", number) for number in range(12)]
    assert engine.step([frames[0]]) == []
    records = [*good(engine.flush("a")), *play(engine, frames[1:])]
    assert [record.epoch for record in records] == [0] * 6 + [1] * 2 + [2] * 2 + [3] * 2
    assert [record.epoch_frame for record in records[6:]] == [4, 5] * 3
    for actual, expected in zip(records[6:8], alone(frames[2:8], replace(stream, epoch_frames=0))[4:], strict=True):
        assert_same(actual, expected, tolerance=0)


# Faults while an epoch begins


class FailOnBlocks:
    """Raises, or poisons with NaN, each run of more than one frame."""

    def __init__(self, model: nn.Module, error: Exception | None) -> None:
        self._error = error
        self.hook = model.get_submodule("patch_embed").register_forward_hook(self._spoil)

    def _spoil(self, module: nn.Module, arguments: tuple[Tensor], output: Tensor) -> Tensor:
        if len(output) < 2:
            return output
        if self._error is not None:
            raise self._error
        return output * float("nan")


@pytest.mark.parametrize("error", [None, RuntimeError("injected"), torch.OutOfMemoryError("none left")])
def test_an_epoch_that_cannot_begin_with_the_last_frames_begins_with_the_next_one(
    engine: Engine, error: Exception | None
) -> None:
    """No frame is lost or fails, and other streams are not affected."""
    for camera, stream in (("a", EPOCHS), ("b", StreamConfig(scale_frames=1))):
        engine.open_stream(camera, stream, ResizeMode.CROP)
    frames = {camera: [frame(camera, number) for number in range(12)] for camera in "ab"}
    found: dict[str, list[Features]] = {"a": [], "b": []}
    for number in range(12):
        fault = FailOnBlocks(model_of(engine), error) if number == 6 else None
        if fault is not None:
            step = [frames["a"][number]]  # alone: a batch of two would fail too
            assert engine.step(step) == []
            fault.hook.remove()
            found["b"] += good(engine.step([frames["b"][number]]))
            continue
        for record in good(engine.step([frames[camera][number] for camera in "ab"])):
            found[record.stamp.camera].append(record)
    assert [record.stamp.source_seq for record in found["a"]] == list(range(12))
    assert [record.epoch_frame for record in found["a"]] == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    assert [Flag.RESET in record.flags for record in found["a"]] == [number == 6 for number in range(12)]
    assert found["a"][6].epoch > found["a"][5].epoch
    for actual, expected in zip(found["a"][6:], alone(frames["a"][6:], EPOCHS), strict=True):
        assert_same(actual, expected)
    for actual, expected in zip(found["b"], alone(frames["b"], StreamConfig(scale_frames=1)), strict=True):
        assert_same(actual, expected)
    assert engine.statistics().failures == 0


def test_a_device_that_breaks_while_an_epoch_begins_ends_the_engine(engine: Engine) -> None:
    engine.open_stream("a", EPOCHS, ResizeMode.CROP)
    play(engine, [frame("a", number) for number in range(6)])
    FailOnBlocks(model_of(engine), RuntimeError("CUDA error: unspecified launch failure"))
    with pytest.raises(DeviceError, match="unspecified launch failure"):
        engine.step([frame("a", 6)])


def test_every_frame_has_exactly_one_outcome_through_epochs_breaks_and_bad_images(engine: Engine) -> None:
    rng = random.Random(1)
    streams = {"a": EPOCHS, "b": StreamConfig(1, 1, epoch_frames=2), "c": StreamConfig(3, 2, 2, epoch_frames=5)}
    for camera, stream in streams.items():
        engine.open_stream(camera, stream, ResizeMode.CROP)
    model_of(engine).get_submodule("patch_embed").register_forward_hook(poison_white_images)
    sizes, connections = dict.fromkeys(streams, (64, 48)), dict.fromkeys(streams, 0)
    sent, records = [], []
    for number in range(150):
        frames = []
        for camera in rng.sample(sorted(streams), rng.randint(1, 3)):
            sizes[camera] = rng.choice([(64, 48), (40, 48)]) if rng.random() < 0.05 else sizes[camera]
            connections[camera] += rng.random() < 0.03
            one = frame(camera, number, sizes[camera], connections[camera])
            frames.append(replace(one, pixels=np.full_like(one.pixels, 255)) if rng.random() < 0.03 else one)
        sent += [one.stamp for one in frames]
        records += good(engine.step(frames))
    records += [record for camera in streams for record in good(engine.flush(camera))]
    assert sorted(records, key=lambda r: (r.stamp.camera, r.stamp.source_seq)) == sorted(
        records, key=lambda r: (r.stamp.camera, r.epoch, r.epoch_frame)
    )
    assert {record.stamp for record in records} == set(sent)
    assert len(records) == len(sent)
    for camera in streams:
        own = [record for record in records if record.stamp.camera == camera]
        for last, record in itertools.pairwise(own):
            assert (record.epoch != last.epoch) == (Flag.RESET in record.flags)
            assert record.epoch > last.epoch or record.epoch_frame == last.epoch_frame + 1


def poison_white_images(module: nn.Module, arguments: tuple[Tensor], output: Tensor) -> Tensor:
    white = arguments[0].flatten(1).amin(1) > 2  # normalised white is 2.2 to 2.7, by channel
    return output.masked_fill(white[:, None, None], float("nan"))


# Memory


def test_memory_is_bounded_and_smaller_where_epochs_are_short() -> None:
    """A test with 20,000 frames is in tests/soak."""
    network = replace(CONFIG.network, depth=1)
    config: ModelConfig = replace(CONFIG, image_width=28, network=network, output=replace(CONFIG.output, layers=(0,)))
    stream = StreamConfig(scale_frames=3, window=4, history_frames=500, epoch_frames=50)
    frames = [frame("a", number, size=(28, 28)) for number in range(10)]
    sizes: dict[str, set[tuple[int, int]]] = {"on": set(), "off": set()}
    with Engine(config) as engine:
        for camera, settings in (("on", stream), ("off", replace(stream, epoch_frames=0))):
            engine.open_stream(camera, settings, ResizeMode.CROP)
        for number in range(1500):
            one = frames[number % 10]
            stamps = [replace(one.stamp, camera=camera, source_seq=number) for camera in ("on", "off")]
            good(engine.step([Frame(stamp, one.pixels) for stamp in stamps]))
            if number >= 3:
                for statistics in engine.statistics().streams:
                    sizes[statistics.camera].add((statistics.nbytes, statistics.recent_nbytes))
                    assert statistics.keyframes <= 50 or statistics.camera == "off"
    ((on, recent),), ((off, none),) = sizes["on"], sizes["off"]
    assert (recent, none) == (3 * 3 * 28 * 28, 0)
    assert on < off / 4


@pytest.mark.parametrize("mode", ResizeMode)
@pytest.mark.parametrize("size", [(64, 48), (56, 42), (31, 97), (200, 150)])
def test_images_are_restored_from_bytes_unchanged(mode: ResizeMode, size: tuple[int, int]) -> None:
    geometry = resize_geometry(size, mode, 56, 14)
    images = [preprocess(frame("a", number, size).pixels, geometry, torch.device("cpu")) for number in range(3)]
    recent = ReplayBuffer(2)
    for image in images:
        recent.add(image)
    assert len(recent) == 2
    assert all(torch.equal(kept, image) for kept, image in zip(recent.images(), images[1:], strict=True))
    other = ReplayBuffer(2)
    other.put(recent.levels)
    assert all(torch.equal(kept, image) for kept, image in zip(other.images(), images[1:], strict=True))
    recent.clear()
    assert (len(recent), recent.nbytes, other.nbytes) == (0, 0, 2 * 3 * geometry.model_size[0] * geometry.model_size[1])


def test_all_levels_of_a_byte_are_restored() -> None:
    image = torch.arange(256.0).reshape(1, 16, 16).expand(3, -1, -1) / 255.0
    recent = ReplayBuffer(1)
    recent.add(image)
    assert torch.equal(recent.images()[0], image)
