"""The network of HorizonStream against outputs of the public implementation, see `horizon_golden`."""

import pytest
import torch

from .golden import random_images
from .horizon_golden import (
    CAMERA_TOLERANCE,
    Case,
    agree,
    cases,
    golden,
    horizon,
    new_state,
    outputs_of,
    run_step,
)


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_every_output_agrees_in_the_first_step_and_in_later_ones(case: Case) -> None:
    model, expected = horizon(case.network), golden(case.name)
    images = random_images(case.seed, case.frames, case.height, case.width)
    state = new_state(model, case.window, case.height, case.width, per_step=case.per_step)
    period = model.horizon.period
    for call, (first, end) in enumerate(zip(case.cuts, case.cuts[1:], strict=False)):
        count = end - first
        # The public code gives the frames of a call the times after those of (call * count) frames.
        later = tuple(call * count % period + s - 1 if call else None for s in range(count))
        layers = run_step(model, [state], [images[first:end]], later)
        found = outputs_of(model, layers, (case.height, case.width), joint=True)
        agree(found.features[..., ::8], expected["features"][first:end])
        agree(found.pose_features[..., ::8], expected["pose_features"][first:end])
        agree(found.camera_rows, expected["camera_rows"][first:end], CAMERA_TOLERANCE)
        agree(found.metric_scale[:1], expected["metric_scale"][call : call + 1])
        agree(found.depth[:, ::2, ::2], expected["depth"][first:end])
        agree(found.depth_conf[:, ::2, ::2], expected["depth_conf"][first:end])
