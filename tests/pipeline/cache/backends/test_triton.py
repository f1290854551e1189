"""The Triton backend attends to what each frame sees; on the CPU, where the kernel's reference runs."""

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from retinad.pipeline.cache.backends.dense import DenseBackend
from retinad.pipeline.cache.backends.triton import TritonBackend, check_device
from retinad.pipeline.cache.kv_pool import KVCachePool, PoolShape
from retinad.pipeline.cache.page_table import VisibleRanges
from retinad.pipeline.cache.step import Step
from retinad.pipeline.cache.stream_cache import StreamState
from retinad.pipeline.cache.window import CacheLayout, StreamWindow
from retinad.pipeline.config import RetentionConfig, StreamConfig
from retinad.pipeline.errors import ModelError

H, D, P, S = 2, 16, 5, 3
SHAPE = PoolShape(1, H, D, torch.bfloat16, torch.device("cpu"))
TOLERANCE = 2e-2
"""Of outputs of about 1, rounded to bfloat16's 8 bits before and after."""

STREAMS = (
    StreamConfig(2, 3, history_frames=2, run_frames=3),
    StreamConfig(1, 4, keyframe_interval=2, history_frames=5, run_frames=2),
    StreamConfig(4, 2, 1, 3, RetentionConfig(True, True, False), run_frames=2),
    StreamConfig(1, 1, history_frames=0),
)


@pytest.fixture(autouse=True)
def _references_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the kernel's reference, even if Triton's interpreter is enabled for other tests."""
    monkeypatch.setattr("retinad.kernels.backend.TRITON_INSTALLED", False)


def test_every_frame_of_every_step_attends_as_the_dense_backend_does() -> None:
    rng, generator = random.Random(1), torch.Generator().manual_seed(1)
    pool = KVCachePool(SHAPE)
    states = [StreamState.allocate(pool, StreamWindow(CacheLayout.of(stream, P, S))) for stream in STREAMS]
    pool.layer(0).fill_(float("nan"))
    triton, dense = TritonBackend(), DenseBackend()
    for number in range(20):
        counts = [stream.scale_frames if number == 0 else rng.randint(1, stream.frames_per_step) for stream in STREAMS]
        query, key, value = torch.randn(3, sum(counts), P, H, D, generator=generator).bfloat16()
        with Step(states, counts, triton) as step:
            step.append(0, key, value)
            expected = Step(states, counts, dense)._attend(0, query.flatten(0, 1)).view(query.shape)
            actual = step.attend(0, query)
            step.commit()
        torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


def test_partial_frames_and_mixed_frame_sizes_are_refused() -> None:
    group = VisibleRanges(P, ((0, P),), P)
    for visible in ([group, replace(group, rows=P + 1)], [group, replace(group, page_tokens=P + 1)]):
        with pytest.raises(ValueError, match="expected whole frames of 5 tokens"):
            TritonBackend().plan(KVCachePool(SHAPE), visible)


def test_a_device_that_is_too_old_is_refused_with_the_required_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ModelError, match=r"capability 8\.0 or newer: set attention = 'dense'"):
        check_device(torch.device("cuda:0"))


def test_rows_attend_as_the_dense_backend_does() -> None:
    """In a first step, where each row sees another number of tokens, also beside later rows of another stream."""
    generator = torch.Generator().manual_seed(2)
    pool, slot_tokens, window = KVCachePool(SHAPE), 2, 3
    stream = StreamConfig(window, window, history_frames=0)
    layout = CacheLayout.window_alone(stream, P, slot_tokens)
    states = [StreamState.allocate(pool, StreamWindow(layout)) for _ in range(2)]
    pool.layer(0).fill_(float("nan"))
    for counts in ((3,), (1,), (1, 3), (1, 1), (1, 1)):
        frames = sum(counts)
        own = window * slot_tokens
        query, key, value = torch.randn(3, frames, P + own, H, D, generator=generator).bfloat16()
        slots = [tokens[:, P:].unflatten(1, (window, slot_tokens)) for tokens in (query, key, value)]
        outputs: list[list[Tensor]] = []
        before = pool.layer(0).clone()
        for backend in (TritonBackend(), DenseBackend()):
            pool.layer(0).copy_(before)
            step = Step(states[: len(counts)], counts, backend)
            step.append(0, key[:, :P], value[:, :P])
            rows = step.attend_rows(0, query, key[:, P:], value[:, P:])
            pool.layer(0).copy_(before)
            step.append(0, key[:, :P], value[:, :P])
            outputs.append([rows, step.attend_slots(0, *slots)])
        step.commit()
        for actual, expected in zip(*outputs, strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)
