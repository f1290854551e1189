"""A stream continues from its file without any difference, or the file is refused with a reason and nothing changes."""

import errno
import json
import os
import random
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from retinad.pipeline.config import ModelConfig, ResizeMode, RetentionConfig, StreamConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.errors import AdmissionError, DeviceError, StateError
from retinad.pipeline.files import state_file
from retinad.pipeline.frames import Features, Flag, Frame

from .engine_rig import CONFIG, TOLERANCE, alone, assert_same, frame, good, play

EPOCHS = StreamConfig(scale_frames=2, window=3, history_frames=4, epoch_frames=12)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.safetensors"


def save(
    path: Path,
    frames: Sequence[Frame],
    stream: StreamConfig = EPOCHS,
    *,
    config: ModelConfig = CONFIG,
    resize: ResizeMode = ResizeMode.CROP,
) -> list[Features]:
    with Engine(config) as engine:
        engine.open_stream("a", stream, resize)
        records = play(engine, frames)
        engine.save_state("a", path)
    return records


def resume(
    path: Path, frames: Sequence[Frame], stream: StreamConfig = EPOCHS, config: ModelConfig = CONFIG
) -> list[Features]:
    """Restore a file in a new engine whose unwritten memory is NaN."""
    with Engine(config) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP)
        engine.load_state("a", path)
        state = engine.streams["a"].state
        assert state is not None
        with torch.inference_mode():
            for index in range(config.attention_layers):
                kept = [part.clone() for part in state.kept(index)]
                state.layer(index).fill_(float("nan"))
                for place, part in zip(state.kept(index), kept, strict=True):
                    place.copy_(part)
        return play(engine, frames)


def assert_equal(actual: Sequence[Features], expected: Sequence[Features], tolerance: float = 0) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert (one.epoch, one.epoch_frame, one.keyframe) == (other.epoch, other.epoch_frame, other.keyframe)
        assert one.flags == other.flags
        assert_same(one, other, tolerance)


@pytest.mark.parametrize(
    "stream",
    [
        EPOCHS,
        StreamConfig(scale_frames=2, window=3, history_frames=4),
        StreamConfig(2, 2, keyframe_interval=3, history_frames=1, epoch_frames=5),
        StreamConfig(3, 2, retention=RetentionConfig(include_scale_frames=False), epoch_frames=8),
        StreamConfig(1, 1, history_frames=0, retention=RetentionConfig(camera_only=True)),
    ],
    ids=str,
)
def test_a_stream_continues_bit_for_bit_from_any_frame(path: Path, stream: StreamConfig) -> None:
    """Across the edges of the scale frames, the window, the history and the epoch."""
    frames = [frame("a", number) for number in range(20)]
    whole = alone(frames, stream)
    for count in range(stream.scale_frames, 18):
        assert_equal(save(path, frames[:count], stream), whole[:count])
        assert_equal(resume(path, frames[count : count + 4], stream), whole[count : count + 4])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_memory_in_half_precision_continues_bit_for_bit(path: Path, dtype: str) -> None:
    config = replace(CONFIG, dtype=dtype)  # type: ignore[arg-type]
    frames = [frame("a", number) for number in range(16)]
    with Engine(config) as engine:
        engine.open_stream("a", EPOCHS, ResizeMode.CROP)
        whole = play(engine, frames)
    save(path, frames[:9], config=config)
    assert_equal(resume(path, frames[9:], config=config), whole[9:])


def test_saving_changes_nothing_and_can_be_repeated(path: Path) -> None:
    frames = [frame("a", number) for number in range(16)]
    with Engine(CONFIG) as engine:
        engine.open_stream("a", EPOCHS, ResizeMode.CROP)
        records = play(engine, frames[:2])
        for one in frames[2:]:
            engine.save_state("a", path)
            records += play(engine, [one])
    assert_equal(records, alone(frames, EPOCHS))
    assert_equal(resume(path, frames[15:]), records[15:])


def test_a_restored_stream_beside_others_equals_itself_alone(path: Path) -> None:
    frames = {camera: [frame(camera, number) for number in range(22)] for camera in "abc"}
    save(path, frames["a"][:10])
    with Engine(CONFIG) as engine:
        engine.open_stream("b", replace(EPOCHS, epoch_frames=7), ResizeMode.CROP)
        records = {"a": [], "b": play(engine, frames["b"][:5]), "c": []}
        engine.open_stream("a", EPOCHS, ResizeMode.CROP)
        engine.load_state("a", path)
        for step in range(12):
            if step == 3:
                engine.open_stream("c", EPOCHS, ResizeMode.CROP)
            present = [frames["a"][10 + step], frames["b"][5 + step], *([frames["c"][step - 3]] if step >= 3 else [])]
            for record in good(engine.step(present)):
                records[record.stamp.camera].append(record)
    assert_equal(records["a"], alone(frames["a"], EPOCHS)[10:], TOLERANCE)
    assert_equal(records["b"], alone(frames["b"][:17], replace(EPOCHS, epoch_frames=7)), TOLERANCE)
    assert_equal(records["c"], alone(frames["c"][:9], EPOCHS), TOLERANCE)


@pytest.mark.parametrize("seed", range(4))
def test_streams_that_come_go_and_are_restored_at_random_equal_each_alone(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    streams = {
        "a": EPOCHS,
        "b": StreamConfig(1, 2, keyframe_interval=2, history_frames=2, epoch_frames=4),
        "c": StreamConfig(3, 2, retention=RetentionConfig(include_scale_frames=False), epoch_frames=7),
        "d": StreamConfig(2, 1, history_frames=3),
    }
    frames = {camera: [frame(camera, number) for number in range(25)] for camera in streams}
    fed, records = dict.fromkeys(streams, 0), {camera: list[Features]() for camera in streams}
    with Engine(CONFIG) as engine:
        for camera, stream in streams.items():
            engine.open_stream(camera, stream, ResizeMode.CROP)
        while any(count < 25 for count in fed.values()):
            for camera, stream in streams.items():
                if fed[camera] >= stream.scale_frames and rng.random() < 0.15:
                    engine.save_state(camera, tmp_path / camera)
                    engine.close_stream(camera)
                    engine.open_stream(camera, stream, ResizeMode.CROP)
                    engine.load_state(camera, tmp_path / camera)
            present = [camera for camera in streams if fed[camera] < 25 and rng.random() < 0.7]
            for record in good(engine.step([frames[camera][fed[camera]] for camera in present])):
                records[record.stamp.camera].append(record)
            for camera in present:
                fed[camera] += 1
    for camera, stream in streams.items():
        assert_equal(records[camera], alone(frames[camera], stream), TOLERANCE)


def test_a_file_may_be_loaded_into_another_camera_and_over_another_memory(path: Path) -> None:
    frames = [frame("a", number) for number in range(14)]
    save(path, frames[:9])
    others = [replace(one, stamp=replace(one.stamp, camera="b")) for one in frames]
    with Engine(CONFIG) as engine:
        engine.open_stream("b", EPOCHS, ResizeMode.CROP)
        play(engine, [frame("b", number, (40, 48)) for number in range(4)])
        saved = engine.load_state("b", path)
        assert_equal(play(engine, others[9:]), alone(frames, EPOCHS)[9:])
    assert (saved.camera, saved.source_size, saved.counters.next_frame) == ("a", (64, 48), 9)


# The first frame after a restore


def test_any_connection_continues_but_only_the_first_one(path: Path) -> None:
    frames = [frame("a", number, stream_epoch=3) for number in range(6)]
    later = [frame("a", number, stream_epoch=0) for number in range(6, 9)]
    again = [frame("a", number, stream_epoch=1) for number in range(9, 12)]
    whole = save(path, frames)
    records = resume(path, [*later, *again])
    assert [record.epoch for record in (*whole, *records)] == [0] * 9 + [1] * 3
    assert [record.epoch_frame for record in records] == [6, 7, 8, 0, 1, 2]
    assert [Flag.RESET in record.flags for record in records] == [False] * 3 + [True, False, False]
    assert_equal(records[:3], alone([frame("a", number) for number in range(9)], EPOCHS)[6:])


def test_frames_of_another_size_begin_a_new_epoch(path: Path) -> None:
    save(path, [frame("a", number) for number in range(6)])
    larger = [frame("a", number, (96, 48)) for number in range(6, 10)]
    records = resume(path, larger)
    assert [(record.epoch, record.epoch_frame) for record in records] == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert {Flag.RESET, Flag.SIZE_CHANGED} <= records[0].flags
    for actual, expected in zip(records, alone(larger, EPOCHS), strict=True):
        assert_same(actual, expected, tolerance=0)


# Refused files


@pytest.mark.parametrize(
    ("config", "stream", "resize", "reason"),
    [
        (replace(CONFIG, seed=1), EPOCHS, ResizeMode.CROP, "weights was random:0, is random:1"),
        (
            replace(CONFIG, network=replace(CONFIG.network, heads=1)),
            EPOCHS,
            ResizeMode.CROP,
            r"model\.network\.heads was 2, is 1",
        ),
        (
            replace(CONFIG, output=replace(CONFIG.output, layers=(0,))),
            EPOCHS,
            ResizeMode.CROP,
            r"model\.layers was 2, is 1",
        ),
        (replace(CONFIG, dtype="bfloat16"), EPOCHS, ResizeMode.CROP, "dtype was float32, is bfloat16"),
        (CONFIG, replace(EPOCHS, window=4), ResizeMode.CROP, r"stream\.window was 3, is 4"),
        (CONFIG, replace(EPOCHS, epoch_frames=13), ResizeMode.CROP, "epoch_frames was 12, is 13"),
        (
            CONFIG,
            replace(EPOCHS, retention=RetentionConfig(camera_only=True)),
            ResizeMode.CROP,
            r"stream\.retention\.camera_only was False, is True",
        ),
        (CONFIG, EPOCHS, ResizeMode.PAD, "resize was crop, is pad"),
        (
            replace(CONFIG, image_width=84),
            EPOCHS,
            ResizeMode.CROP,
            r"to \(56, 42\), but now they are resized to \(84, 56\)",
        ),
    ],
)
def test_a_file_of_another_model_or_stream_is_refused_with_the_reason(
    path: Path, config: ModelConfig, stream: StreamConfig, resize: ResizeMode, reason: str
) -> None:
    save(path, [frame("a", number) for number in range(6)])
    frames = [frame("b", number) for number in range(6)]
    with Engine(config) as engine:
        engine.open_stream("b", stream, resize)
        records = play(engine, frames[:4])
        with pytest.raises(StateError, match=reason):
            engine.load_state("b", path)
        records += play(engine, frames[4:])
    with Engine(config) as engine:
        engine.open_stream("b", stream, resize)
        assert_equal(records, play(engine, frames))


def damaged(path: Path) -> Iterator[tuple[str, bytes]]:
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    for cut in (0, 4, 8 + length // 2, 8 + length, len(whole) - 1):
        yield f"cut at {cut}", whole[:cut]
    yield "longer", whole + b"\0"
    for key, value in (
        ("schema", 1),
        ("schema", "x"),
        ("grid", [3]),
        ("counters", {}),
        ("recent", 9),
        ("source_size", [0, 0]),
        ("setting", None),
    ):
        inner = json.loads(header["__metadata__"]["retinad"]) | {key: value}
        yield f"{key} is {value}", _with_header(header, json.dumps(inner), whole[8 + length :])
    counters = json.loads(header["__metadata__"]["retinad"])["counters"]
    for key, value in (("committed", 0), ("pinned", 3), ("pinned", -1), ("later", -1), ("committed", 4)):
        inner = json.loads(header["__metadata__"]["retinad"]) | {"counters": counters | {key: value}}
        yield f"{key} is {value}", _with_header(header, json.dumps(inner), whole[8 + length :])
    yield "no JSON", _with_header(header, "{", whole[8 + length :])


def _with_header(header: dict[str, Any], text: str, tensors: bytes) -> bytes:
    changed = json.dumps(header | {"__metadata__": {"retinad": text}}).encode()
    begin = header["crc32"]["data_offsets"][0]
    tensors = tensors[:begin] + zlib.crc32(text.encode()).to_bytes(8, "little") + tensors[begin + 8 :]
    return len(changed).to_bytes(8, "little") + changed + tensors


@pytest.mark.parametrize("name", ["tokens.0.0", "tokens.1.0", "recent.1", "crc32", "header"])
def test_one_changed_bit_is_found_and_the_file_is_named(path: Path, name: str) -> None:
    """Nothing else would show it: a changed number is still a number."""
    save(path, [frame("a", number) for number in range(6)])
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    if name == "header":
        at = content.index(b"committed") + len("committed") + 3  # a digit
    else:
        at = 8 + length + header[name]["data_offsets"][0] + 3
    content[at] ^= 1
    path.write_bytes(content)
    frames = [frame("a", number) for number in range(5)]
    with Engine(CONFIG) as engine:
        engine.open_stream("a", EPOCHS, ResizeMode.CROP)
        with pytest.raises(StateError, match=rf"{path.name} is damaged: the checksum of .* does not match"):
            engine.load_state("a", path)
        assert_equal(play(engine, frames), alone(frames, EPOCHS))


def test_a_damaged_file_is_refused_and_changes_nothing(path: Path, tmp_path: Path) -> None:
    frames = [frame("a", number) for number in range(7)]
    save(path, frames[:5])
    with Engine(CONFIG) as engine:
        engine.open_stream("a", EPOCHS, ResizeMode.CROP)
        records = play(engine, frames[:6])
        for name, content in damaged(path):
            (tmp_path / "damaged").write_bytes(content)
            try:
                engine.load_state("a", tmp_path / "damaged")
            except StateError:
                continue
            raise AssertionError(name)
        save_file({"tokens.0.0": torch.zeros(1)}, tmp_path / "other.safetensors")
        for other, reason in (("other.safetensors", "is not a state file"), ("none", "none"), ("", tmp_path.name)):
            with pytest.raises(StateError, match=reason):
                engine.load_state("a", tmp_path / other)
        records += play(engine, frames[6:])
    assert_equal(records, alone(frames, EPOCHS))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), AdmissionError),
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), DeviceError),
        (RuntimeError("a fault of the program"), RuntimeError),
    ],
)
def test_a_device_without_memory_for_a_file_is_not_blamed_on_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    """The stream continues, because images are copied to the device before any part of the stream is dropped."""
    frames = [frame("a", number) for number in range(12)]
    save(path, frames[:6])

    def no_room(*_: object, **__: object) -> None:
        raise error

    with Engine(CONFIG) as engine, Engine(CONFIG) as undisturbed:
        for one in (engine, undisturbed):
            one.open_stream("a", EPOCHS, ResizeMode.CROP)
            play(one, frames[6:9])
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "to", no_room)
            with pytest.raises(kind, match=str(error)):
                engine.load_state("a", path)
        assert_equal(play(engine, frames[9:]), play(undisturbed, frames[9:]))


def test_a_pipe_in_place_of_a_file_is_refused_at_once(tmp_path: Path) -> None:
    """Opening it would block the whole process forever, signals included."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StateError, match="pipe is not a regular file"), state_file.open_state_file(tmp_path / "pipe"):
        pass


def test_a_stream_that_cannot_be_saved_says_why(path: Path) -> None:
    with Engine(CONFIG) as engine:
        for call in (engine.save_state, engine.load_state):
            with pytest.raises(ValueError, match="no stream"):
                call("a", path)
        engine.open_stream("a", EPOCHS, ResizeMode.CROP)
        with pytest.raises(StateError, match="has no memory yet"):
            engine.save_state("a", path)
        engine.step([frame("a", 0)])
        with pytest.raises(StateError, match="has no memory yet"):
            engine.save_state("a", path)
        play(engine, [frame("a", 1), frame("a", 2, stream_epoch=1)])
        with pytest.raises(StateError, match=r"flush it first|has no memory yet"):
            engine.save_state("a", path)
        engine.flush("a")
        with pytest.raises(StateError, match="No such file"):
            engine.save_state("a", path.parent / "none" / "a")
        engine.save_state("a", path)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


# The file


def test_a_file_is_plain_safetensors_that_only_its_owner_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [frame("a", number) for number in range(6)]
    save(path, frames)
    assert path.stat().st_mode & 0o777 == 0o600
    tensors = load_file(path)
    assert sorted(tensors) == ["crc32", "recent.0", "recent.1", "tokens.0.0", "tokens.1.0"]
    assert tensors["tokens.0.0"].shape == (2, (2 + 3) * 18 + 1 * 6, 2, 16)  # scale frames, window, one evicted frame
    monkeypatch.setattr(state_file, "PIECE_BYTES", 1000)
    save(path, frames)
    in_pieces = load_file(path)
    for stored in (tensors, in_pieces):
        stored["crc32"] = stored["crc32"][1:]  # without the header's, which has the time in it
    assert all(torch.equal(in_pieces[name], value) for name, value in tensors.items())


@pytest.mark.parametrize("left", [0, 1, 7])
def test_a_write_that_fails_or_times_out_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    frames = [frame("a", number) for number in range(6)]
    save(path, frames[:4])
    before = path.read_bytes()
    monkeypatch.setattr(state_file, "PIECE_BYTES", 1000)
    pieces = 0

    def fdatasync(descriptor: int) -> None:
        nonlocal pieces
        pieces += 1
        if pieces > left:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(StateError, match="No space left"):
        save(path, frames)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_deadline_stops_a_write_at_the_next_piece(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "PIECE_BYTES", 1000)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: time.sleep(0.02))
    frames = [frame("a", number) for number in range(6)]
    with Engine(CONFIG) as engine:
        engine.open_stream("a", EPOCHS, ResizeMode.CROP)
        records = play(engine, frames[:5])
        for within_s in (-1.0, 0.1):
            began = time.monotonic()
            with pytest.raises(StateError, match="no time"):
                engine.save_state("a", path, deadline_s=began + within_s)
            assert time.monotonic() - began < max(0.0, within_s) + 0.2
            assert list(path.parent.iterdir()) == []
        records += play(engine, frames[5:])
    assert_equal(records, alone(frames, EPOCHS))
