"""Poses and depths on a GPU equal those on the CPU, in plain, fused and captured steps; random weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from retinad.pipeline.config import AttentionName, ExecutionName, ModelConfig, ResizeMode
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Features

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
