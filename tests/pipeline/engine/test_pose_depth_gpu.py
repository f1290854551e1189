"""Poses and depths on a GPU equal those on the CPU, in plain, fused and captured steps; random weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from retinad.pipeline.config import AttentionName, ExecutionName, ModelConfig, ResizeMode
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Features
from retinad.pipeline.view_config import Calibration, Mask, MaskFill, ViewConfig

from .engine_rig import STREAM, frame, good
from .heads_rig import EVERY, HEADS, numbers

pytestmark = pytest.mark.gpu
CPU = replace(HEADS, network=replace(HEADS.network, channels=256, heads=4), image_width=112)
ERROR = 0.1
"""Of the largest magnitude. Tokens in bfloat16 differ by 1.5e-2, which three rounds of random weights amplify."""


def played(config: ModelConfig) -> list[Features]:
    with Engine(config) as engine:
        for camera, outputs in (("a", EVERY), ("b", EVERY[:2])):
            engine.open_stream(camera, STREAM, ResizeMode.CROP, outputs=outputs)
        return [record for n in range(8) for record in good(engine.step([frame(camera, n) for camera in "ab"]))]


def worst(actual: list[Features], expected: list[Features], name: str) -> float:
    errors = [0.0]
    for one, other in zip(actual, expected, strict=True):
        if name in [tensor.name for tensor in other.tensors]:
            mine, its = (numbers(record, name).astype(np.float64) for record in (one, other))
            errors.append(float(np.abs(mine - its).max() / np.abs(its).max()))
    assert len(errors) > 8
    return max(errors)


@pytest.mark.parametrize("execution", ["plain", "fused", "captured"])
@torch.inference_mode()
def test_a_gpu_gives_the_numbers_of_the_cpu(execution: ExecutionName) -> None:
    attention: AttentionName = "dense" if execution == "plain" else "triton"
    config = replace(CPU, device="cuda:0", dtype="bfloat16", attention=attention, execution=execution)
    found, expected = played(config), played(CPU)
    for name in ("pose/encoding", "depth", "depth_confidence"):
        assert worst(found, expected, name) < ERROR, name


def test_float32_on_a_gpu_agrees_closely() -> None:
    """The camera head is float32 on every device; convolutions may use TF32, which keeps 10 bits."""
    found, expected = played(replace(CPU, device="cuda:0", attention="dense")), played(CPU)
    assert worst(found, expected, "pose/encoding") < 2e-3
    assert worst(found, expected, "depth") < 1e-2


@pytest.mark.parametrize("execution", ["plain", "captured"])
def test_queries_leave_a_stream_as_it_was(execution: ExecutionName) -> None:
    """Bit for bit, also where the query replays the stream's own graph."""
    attention: AttentionName = "dense" if execution == "plain" else "triton"
    config = replace(CPU, device="cuda:0", dtype="bfloat16", attention=attention, execution=execution)
    records: list[list[Features]] = []
    for asked in (False, True):
        with Engine(config) as engine:
            engine.open_stream("a", STREAM, ResizeMode.CROP)
            records.append([])
            for number in range(12):
                records[-1] += good(engine.step([frame("a", number)]))
                if asked and number >= STREAM.scale_frames:
                    answer = engine.locate("a", frame("x", number, size=(90, 40)).pixels)
                    assert np.isfinite(numbers(answer, "pose/encoding")).all()
    for one, other in zip(*records, strict=True):
        for mine, its in zip(one.tensors, other.tensors, strict=True):
            np.testing.assert_array_equal(mine.data, its.data)


def test_known_views_and_keyframes_by_motion_are_those_of_the_cpu() -> None:
    """In float32: undistorted and filled pictures differ by at most a level, and the same frames become keyframes."""
    lens = Calibration((64, 48), (50.0, 50.0), (31.5, 23.5), "brown", (-0.2, 0.05, 0.0, 0.0))
    mask = Mask(polygons=(((-1.0, -1.0), (20.0, -1.0), (20.0, 49.0), (-1.0, 49.0)),))
    known = ViewConfig(calibration=lens, mask=mask, mask_fill=MaskFill.MEAN, metres_per_unit=2.0)
    stream = replace(STREAM, keyframe_interval=4, keyframe_flow_px=1e-6)
    found: list[list[Features]] = []
    for config in (CPU, replace(CPU, device="cuda:0", attention="dense")):
        with Engine(config) as engine:
            engine.open_stream("a", stream, ResizeMode.CROP, known=known)
            found.append([record for n in range(12) for record in good(engine.step([frame("a", n)]))])
    cpu, gpu = found
    assert [record.keyframe for record in gpu] == [record.keyframe for record in cpu]
    assert not all(record.keyframe for record in cpu)
    assert worst(gpu, cpu, "pose/encoding") < 1e-2
    for one, other in zip(gpu, cpu, strict=True):
        np.testing.assert_array_equal(np.isnan(numbers(one, "depth")), np.isnan(numbers(other, "depth")))
        np.testing.assert_array_equal(numbers(one, "mask"), numbers(other, "mask"))
