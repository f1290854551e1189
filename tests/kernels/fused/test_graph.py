"""Captured kernels read slots, copies and pixels from the device at every replay."""

# torch.cuda.Stream has no types.
# mypy: disable-error-code="no-untyped-call"

from collections.abc import Callable

import pytest
import torch

from retinad.kernels.fused import Append, copy_slots, image_tables, preprocess, qk_norm_rope
from retinad.pipeline.config import ResizeMode
from retinad.pipeline.engine.preprocess import resize_geometry

pytestmark = pytest.mark.gpu


def captured(call: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A graph of `call`. The first call compiles, on a side stream, as a capture requires."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    with torch.cuda.graph(graph):
        call()
    return graph


def test_slots_are_read_at_each_replay(device: torch.device) -> None:
    packed = torch.randn(2, 5, 3, 4, 64, device=device)
    kv_cache, slots = torch.zeros(2, 100, 4, 64, device=device), torch.tensor([0, 5], device=device)
    query = torch.empty(2, 5, 4, 64, device=device)
    graph = captured(lambda: qk_norm_rope(packed, None, None, query=query, append=Append(kv_cache, slots)))
    kv_cache.zero_()
    slots.copy_(torch.tensor([90, -5], device=device))  # the second frame is skipped
    graph.replay()
    assert torch.equal(kv_cache[:, 90:95], packed[0, :, 1:].transpose(0, 1))
    assert not kv_cache[:, :90].any()


def test_copies_are_read_at_each_replay(device: torch.device) -> None:
    kv_cache, copies = torch.randn(2, 50, 2, 8, device=device), torch.zeros(2, 3, dtype=torch.int64, device=device)
    graph, want = captured(lambda: copy_slots(kv_cache, copies)), kv_cache.clone()
    graph.replay()
    assert torch.equal(kv_cache, want)
    copies[1] = torch.tensor([30, 4, 6], device=device)
    graph.replay()
    want[:, 4:10] = want[:, 30:36]
    assert torch.equal(kv_cache, want)


def test_pixels_are_read_at_each_replay(device: torch.device) -> None:
    tables = image_tables(resize_geometry((97, 61), ResizeMode.CROP, 56, 14), (0, 0, 0), (1, 1, 1), device)
    pixels = torch.zeros(61, 97, 3, dtype=torch.uint8, device=device)
    between = torch.empty(tables.between_shape, dtype=torch.uint8, device=device)
    out = torch.empty(3, *reversed(tables.model_size), device=device)
    graph = captured(lambda: preprocess(pixels, tables, between, out))
    pixels[..., 2] = 255
    graph.replay()
    assert [float(plane.mean()) for plane in out] == [1, 0, 0]
