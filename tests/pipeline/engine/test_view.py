"""What is known of a camera's view: undistortion, masks, and the unit in metres. Random weights."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from retinad.pipeline.config import ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.view import FrameView
from retinad.pipeline.errors import StateError
from retinad.pipeline.frames import CropPlace, Features, Frame, OutputKind
from retinad.pipeline.model.camera_head import CameraHead
from retinad.pipeline.view_config import Calibration, KnownDistance, Mask, MaskFill, ViewConfig

from .engine_rig import STREAM, bad, frame, good, play
from .heads_rig import HEADS, numbers

SIZE = (64, 48)
CPU = torch.device("cpu")
LENS = Calibration(SIZE, (50.0, 50.0), (31.5, 23.5), "brown", (-0.2, 0.05, 0.0, 0.0))
NO_LENS = replace(LENS, coefficients=())
LEFT = Mask(polygons=(((-1.0, -1.0), (31.5, -1.0), (31.5, 49.0), (-1.0, 49.0)),))
"""Ignores the left half."""


def frames(count: int, camera: str = "a", size: tuple[int, int] = SIZE) -> list[Frame]:
    return [frame(camera, number, size=size) for number in range(count)]


def run(
    given: Sequence[Frame], known: ViewConfig | None = None, config: ModelConfig = HEADS, stream: StreamConfig = STREAM
) -> list[Features]:
    with Engine(config) as engine:
        engine.open_stream("a", stream, ResizeMode.CROP, known=known)
        return play(engine, given)


def assert_same(actual: Sequence[Features], expected: Sequence[Features]) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert [tensor.name for tensor in one.tensors] == [tensor.name for tensor in other.tensors]
        for mine, its in zip(one.tensors, other.tensors, strict=True):
            np.testing.assert_array_equal(mine.data, its.data)


def changed(view: ViewConfig, pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The pixels as the model sees them."""
    frame_view = FrameView(view, SIZE, 0, 0, SIZE, CPU)
    return frame_view.change(torch.from_numpy(pixels)).numpy()


@pytest.mark.parametrize(
    "known",
    [
        ViewConfig(calibration=LENS),
        ViewConfig(mask=LEFT, mask_fill=MaskFill.MEAN),
        ViewConfig(calibration=LENS, mask=LEFT, mask_fill=MaskFill.BLACK),
    ],
    ids=["lens", "mask", "both"],
)
def test_the_model_sees_the_undistorted_and_filled_frames(known: ViewConfig) -> None:
    given = frames(6)
    seen = [Frame(one.stamp, np.ascontiguousarray(changed(known, one.pixels))) for one in given]
    assert not np.array_equal(seen[0].pixels, given[0].pixels)
    actual, expected = run(given, known), run(seen)
    for one, other in zip(actual, expected, strict=True):
        for tensor in other.tensors:
            if tensor.output.kind in (OutputKind.FEATURES, OutputKind.POSE):
                np.testing.assert_array_equal(numbers(one, tensor.name), tensor.data)


def test_a_filled_mask_has_the_colour_that_is_zero_after_normalisation() -> None:
    pixels = np.full((48, 64, 3), 200, np.uint8)
    filled = changed(ViewConfig(mask=LEFT, mask_fill=MaskFill.MEAN), pixels)
    assert (filled[:, :32] == (104, 116, 124)).all()
    assert (filled[:, 32:] == 200).all()
    assert (changed(ViewConfig(mask=LEFT, mask_fill=MaskFill.BLACK), pixels)[:, :32] == 0).all()
    assert (changed(ViewConfig(mask=LEFT), pixels) == 200).all()


def test_nothing_known_changes_nothing() -> None:
    """Not a bit of a tensor, and no tensor more."""
    given = frames(6)
    assert_same(run(given, ViewConfig()), run(given))
    plain = run(given, ViewConfig(calibration=NO_LENS, mask_fill=MaskFill.NONE))
    assert_same(plain, run(given))
    assert plain[0].known_intrinsics == (50.0, 50.0, 31.5, 23.5)
    assert run(given)[0].known_intrinsics is None


@pytest.mark.parametrize("stride", [1, 3])
def test_what_is_ignored_has_no_depth_and_no_confidence(stride: int) -> None:
    config = replace(HEADS, output=replace(HEADS.output, map_stride=stride))
    given = frames(4)
    masked, whole = run(given, ViewConfig(mask=LEFT), config)[3], run(given, None, config)[3]
    columns = np.arange(0, masked.model_size[0], stride) * masked.to_source[0][0] + masked.to_source[0][2]
    ignored = np.rint(columns) < 32
    assert 0.4 < ignored.mean() < 0.6
    for name in ("depth", "points"):
        assert np.isnan(numbers(masked, name)[:, ignored]).all()
        np.testing.assert_array_equal(numbers(masked, name)[:, ~ignored], numbers(whole, name)[:, ~ignored])
        assert (numbers(masked, f"{name}_confidence")[:, ignored] == 0).all()
    np.testing.assert_array_equal(numbers(masked, "pose/encoding"), numbers(whole, "pose/encoding"))


def test_the_mask_is_told_as_the_share_of_each_patch_that_counts() -> None:
    masked = run(frames(4), ViewConfig(mask=LEFT))[3]
    shares = numbers(masked, "mask")
    assert shares.shape == masked.grid
    np.testing.assert_allclose(shares.mean(), 0.5, atol=0.02)
    assert (shares[:, 0] == 0).all()
    assert (shares[:, -1] == 1).all()


def test_pixels_from_beyond_the_frame_do_not_count() -> None:
    """A lens that bends inwards leaves the corners of the undistorted frame without a picture."""
    pincushion = replace(LENS, coefficients=(0.5, 0.0, 0.0, 0.0))
    record = run(frames(4), ViewConfig(calibration=pincushion))[3]
    depth = numbers(record, "depth")
    assert np.isnan(depth[0, 0])
    assert np.isfinite(depth[depth.shape[0] // 2, depth.shape[1] // 2])


def test_a_cropped_frame_is_undistorted_at_its_place() -> None:
    """And the mask is that of the captured frame."""
    captured = (100, 80)
    lens = Calibration(captured, (80.0, 80.0), (49.5, 39.5), "brown", (-0.2, 0.05, 0.0, 0.0))
    corner = Mask(polygons=(((-1.0, -1.0), (50.5, -1.0), (50.5, 81.0), (-1.0, 81.0)),))
    view = FrameView(ViewConfig(calibration=lens, mask=corner), captured, 20, 10, SIZE, CPU)
    whole = FrameView(ViewConfig(calibration=lens), captured, 0, 0, captured, CPU)
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (80, 100, 3), np.uint8))
    part = view.change(pixels[10:58, 20:84].contiguous())
    np.testing.assert_allclose(part[10:38, 15:49].int(), whole.change(pixels)[20:48, 35:69].int(), atol=1)
    one = frame("a", 0)
    stamp = replace(one.stamp, crop=CropPlace(20, 10, captured))
    with Engine(HEADS) as engine:
        engine.open_stream("a", replace(STREAM, scale_frames=1), ResizeMode.CROP, known=ViewConfig(mask=corner))
        (record,) = good(engine.step([Frame(stamp, one.pixels)]))
    shares = numbers(record, "mask").astype(float).mean(axis=0)
    assert shares[0] == 0
    assert shares[-1] == 1
    assert shares.mean() == pytest.approx(1 - 31 / 64, abs=0.02)


def test_frames_of_another_shape_than_the_calibrations_fail_with_the_reason() -> None:
    with Engine(HEADS) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP, known=ViewConfig(calibration=LENS))
        (failure,) = bad(engine.step([frame("a", 0, size=(64, 40))]))
        assert "the calibration is for frames of 64x48 pixels, whose shape is not that of 64x40" in failure.reason
        assert len(play(engine, frames(3))) == 3


def test_cameras_with_and_without_a_lens_share_a_step() -> None:
    with Engine(HEADS) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP, known=ViewConfig(calibration=LENS, mask=LEFT))
        engine.open_stream("b", STREAM, ResizeMode.CROP)
        pairs = [(frame("a", number), frame("b", number)) for number in range(6)]
        for pair in pairs:
            engine.prepare(pair)
        found = [features for pair in pairs for features in good(engine.step(pair))]
    alone = run(frames(6), ViewConfig(calibration=LENS, mask=LEFT))
    together = [features for features in found if features.stamp.camera == "a"]
    for one, other in zip(together, alone, strict=True):
        for tensor in other.tensors:
            if "intrinsics" not in tensor.name:
                np.testing.assert_allclose(numbers(one, tensor.name), tensor.data, rtol=2e-3, atol=2e-3)


def test_a_kept_memory_of_other_pictures_is_not_restored(tmp_path: Path) -> None:
    """Of another scale or an unfilled mask it is: these do not change what the model saw."""
    seen = ViewConfig(calibration=LENS)
    with Engine(HEADS) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP, known=seen)
        play(engine, frames(4))
        engine.save_state("a", tmp_path / "state")
    for other in (None, ViewConfig(calibration=replace(LENS, coefficients=(0.1, 0.0, 0.0, 0.0)))):
        with Engine(HEADS) as engine:
            engine.open_stream("a", STREAM, ResizeMode.CROP, known=other)
            with pytest.raises(StateError, match="is for another stream"):
                engine.load_state("a", tmp_path / "state")
    with Engine(HEADS) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP, known=replace(seen, mask=LEFT, metres_per_unit=2.0))
        engine.load_state("a", tmp_path / "state")


# The unit


@pytest.fixture
def walking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The camera head says that the camera is at x = 0.25 times the number of frames so far."""
    number = [0]

    def forward(head: CameraHead, tokens: Tensor, memory: Any) -> Tensor:
        number[0] += len(tokens)
        first = number[0] - len(tokens)
        return torch.tensor([[0.25 * (first + n), 0, 0, 0, 0, 0, 1, 1.0, 1.2] for n in range(len(tokens))])

    monkeypatch.setattr(CameraHead, "forward", forward)


def timed(count: int, start: int = 0) -> list[Frame]:
    """One frame a second."""
    made = []
    for number in range(start, start + count):
        one = frame("a", number)
        made.append(Frame(replace(one.stamp, pts_ns=number * 1_000_000_000), one.pixels))
    return made


@pytest.mark.usefixtures("walking")
def test_with_metres_per_unit_poses_depths_and_points_are_in_metres() -> None:
    metres = run(timed(5), ViewConfig(metres_per_unit=3.0))[4]
    assert metres.geometry is not None
    assert metres.geometry.unit == "metre"
    assert metres.geometry.alignment.scale == pytest.approx(3.0)
    np.testing.assert_allclose(numbers(metres, "pose/world_from_camera")[:, 3], [3.0, 0, 0])
    np.testing.assert_allclose(numbers(metres, "pose/encoding")[:3], [1.0, 0, 0])


def test_metres_per_unit_multiplies_the_maps_and_nothing_else() -> None:
    metres, units = run(timed(5), ViewConfig(metres_per_unit=3.0))[4], run(timed(5))[4]
    for name in ("depth", "points"):
        ratio = numbers(metres, name).astype(float) / numbers(units, name).astype(float)
        np.testing.assert_allclose(ratio, 3.0, rtol=2e-3)  # float16
        np.testing.assert_array_equal(numbers(metres, f"{name}_confidence"), numbers(units, f"{name}_confidence"))
    assert metres.geometry != units.geometry
    for tensor in units.tensors:
        if tensor.output.kind is OutputKind.FEATURES:
            np.testing.assert_array_equal(numbers(metres, tensor.name), tensor.data)


@pytest.mark.usefixtures("walking")
def test_the_unit_follows_from_a_known_distance_once_it_was_seen() -> None:
    """From second 2 to second 6 the camera moves 4 x 0.25 = 1 unit, which is said to be 5 m."""
    records = run(timed(10), ViewConfig(known_distance=KnownDistance(5.0, 2.0, 6.0)))
    units = [record.geometry.unit for record in records if record.geometry]
    assert units == ["stream"] * 6 + ["metre"] * 4
    assert records[0].geometry is not None
    assert "measured 6 s after the trajectory's first frame" in str(records[0].geometry.unit_reason)
    np.testing.assert_allclose(numbers(records[9], "pose/world_from_camera")[:, 3], [5.0 * 9 * 0.25, 0, 0])
    assert records[9].geometry is not None
    assert records[9].geometry.unit_reason is None


def test_a_camera_that_stands_still_gives_no_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    still = torch.tensor([[0.5, 0, 0, 0, 0, 0, 1, 1.0, 1.2]])
    monkeypatch.setattr(CameraHead, "forward", lambda head, tokens, memory: still.repeat(len(tokens), 1))
    record = run(timed(10), ViewConfig(known_distance=KnownDistance(5.0, 2.0, 6.0)))[9]
    assert record.geometry is not None
    assert record.geometry.unit == "stream"
    assert "did not move between" in str(record.geometry.unit_reason)


@pytest.mark.usefixtures("walking")
def test_a_unit_that_was_found_is_kept_with_the_memory(tmp_path: Path) -> None:
    known = ViewConfig(known_distance=KnownDistance(5.0, 2.0, 6.0))
    with Engine(HEADS) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP, known=known)
        play(engine, timed(8))
        engine.save_state("a", tmp_path / "state")
    with Engine(HEADS) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP, known=known)
        engine.load_state("a", tmp_path / "state")
        (record,) = play(engine, timed(1, start=8))
    assert record.geometry is not None
    assert (record.geometry.unit, record.geometry.alignment.scale) == ("metre", 5.0)


@pytest.mark.usefixtures("walking")
def test_a_new_trajectory_measures_anew() -> None:
    """Its unit may be another one."""
    with Engine(HEADS) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP, known=ViewConfig(known_distance=KnownDistance(5.0, 2.0, 6.0)))
        records = play(engine, timed(8))
        again = [Frame(replace(one.stamp, stream_epoch=1), one.pixels) for one in timed(8)]
        records += play(engine, again)
    units = [record.geometry.unit for record in records if record.geometry]
    assert units == (["stream"] * 6 + ["metre"] * 2) * 2
