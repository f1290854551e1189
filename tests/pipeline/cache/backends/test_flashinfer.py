"""The FlashInfer backend without a GPU: its calls of the kernels, what it refuses, and the choice of `auto`."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from retinad.pipeline.cache.backends.flashinfer import FlashInferBackend, plan_bytes
from retinad.pipeline.cache.backends.paged import TableTensors, attend_pages
from retinad.pipeline.cache.backends.select import choose_backend
from retinad.pipeline.cache.kv_pool import PoolShape
from retinad.pipeline.cache.page_table import VisibleRanges
from retinad.pipeline.config import FlashInferKernels, ModelConfig, StreamConfig
from retinad.pipeline.errors import ModelError

from ..memory import BACKENDS, D, H, new_pool, new_state, poison, run, tokens

REAL = PoolShape(24, 16, 64, torch.bfloat16, torch.device("cuda:0"))


class FakeWrapper:
    """Has the parameters of the kernels, and reads pages in plain PyTorch."""

    def __init__(self) -> None:
        self.plans = 0

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        disable_split_kv: bool,
    ) -> None:
        arrays = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(array.dtype is torch.int32 and array.device.type == "cpu" for array in arrays)
        assert (num_qo_heads, num_kv_heads, head_dim_qk, causal, disable_split_kv) == (H, H, D, False, True)
        assert q_data_type is kv_data_type is torch.float32
        self.plans += 1
        self._arrays = TableTensors(*arrays)
        self._page_size = page_size

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor) -> Tensor:
        assert q.is_contiguous()
        assert all(pages.is_contiguous() and pages.shape[1] == self._page_size for pages in paged_kv_cache)
        return out.copy_(attend_pages(q, paged_kv_cache, self._arrays))


def test_all_streams_of_a_step_are_planned_once_and_attended_in_one_call_a_layer() -> None:
    wrapper = FakeWrapper()
    backend, pool = FlashInferBackend(wrapper, "fa2"), new_pool()
    settings = [StreamConfig(2, 2), StreamConfig(2, 3, 2)]
    states, alone = [new_state(stream, pool) for stream in settings], [new_state(stream) for stream in settings]
    for number in range(12):
        poison(pool, states)
        parts = [tokens(10 * number + i, 2 if number == 0 else 1) for i in range(2)]
        outputs = run(states, parts, backend).split_with_sizes([part.shape[2] for part in parts], dim=1)
        assert wrapper.plans == number + 1
        for state, part, output in zip(alone, parts, outputs, strict=True):
            torch.testing.assert_close(output, run([state], [part], BACKENDS["dense"]), rtol=0, atol=1e-6)


def test_unplanned_queries_never_reach_the_kernels() -> None:
    """The kernels would read and write out of bounds."""
    pool = new_pool()
    new_state(StreamConfig(2, 2), pool)
    attend = FlashInferBackend(FakeWrapper(), "fa2").plan(pool, [VisibleRanges(5, ((0, 10),), 5)])
    for wrong in (torch.zeros(6, H, D), torch.zeros(5, H, D + 1), torch.zeros(5, H, D, dtype=torch.float64)):
        with pytest.raises(ValueError, match="planned for 5 queries"):
            attend(0, wrong)


def test_a_plan_larger_than_the_kernels_workspace_is_refused() -> None:
    pool = new_pool()
    new_state(StreamConfig(200_000, 1), pool)
    with pytest.raises(ValueError, match=r"needs .*, the limit is 8\.0 MiB"):
        FlashInferBackend(FakeWrapper(), "fa2").plan(pool, [VisibleRanges(2_000_000, ((0, 10),), 5)])


@pytest.mark.parametrize("kernels", ["fa2", "fa3"])
def test_a_plan_for_64_square_images_fits_the_kernels_workspace(kernels: FlashInferKernels) -> None:
    assert 64 * 1375 / 8 < plan_bytes(kernels, 64 * 1375, 64, REAL) < 8 << 20


def test_auto_selects_dense_without_kernels_and_says_why() -> None:
    choice = choose_backend(ModelConfig(attention="auto"), replace(REAL, device=torch.device("cpu")))
    assert (choice.name, choice.reason) == ("dense", "triton runs on CUDA, not on cpu")


def test_a_configured_backend_runs_or_raises() -> None:
    shape = replace(REAL, device=torch.device("cpu"))
    assert (choose_backend(ModelConfig(attention="dense"), shape).name) == "dense"
    assert (choose_backend(ModelConfig(attention="paged"), shape).name) == "paged"
    with pytest.raises(ModelError, match="runs on CUDA"):
        choose_backend(ModelConfig(attention="flashinfer"), shape)
