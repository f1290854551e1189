"""The aggregator reproduces the reference implementation's outputs."""

import numpy as np
import pytest
import torch

from retinad.pipeline.cache.attention_backend import AttentionBackend
from retinad.pipeline.cache.backends.dense import DenseBackend
from retinad.pipeline.cache.backends.paged import PagedBackend

from .golden import DATA, TOLERANCE, Case, aggregator, cases, new_state, random_images, run_stream


@pytest.mark.parametrize("backend", [DenseBackend(), PagedBackend()], ids=["dense", "paged"])
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_stream_equals_the_reference(case: Case, backend: AttentionBackend) -> None:
    expected = np.load(DATA / f"{case.name}.npz")["features"]
    with torch.inference_mode():
        model = aggregator(case.network)
        state = new_state(model, case.stream, case.height, case.width)
        images = random_images(case.seed, case.frames, case.height, case.width)
        actual = run_stream(model, state, images, backend=backend)
    error = np.abs(actual[..., ::8].numpy() - expected).max() / np.abs(expected).max()
    assert error <= TOLERANCE
