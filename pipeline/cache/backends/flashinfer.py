"""The FlashInfer backend: one call of its paged kernels per layer, for all streams. Only this file imports flashinfer.

Tested with flashinfer 0.6.13. A step is planned from host tensors, so nothing is read back from the device. Pages are
views of the pool, not copies. A page has as many slots as a frame has tokens, even if that is no round number, and the
kernels are told the length of the last page. So padding is never attended to. (Another implementation, which rounded
777 tokens up to 1024, was 16 % off.)

Limit of these kernels: if the dot products of a query with all keys, before scaling, are below -5e4, the output is
zero. This backend's queries and keys are layer-normalised, so a product is at most D (64) times the product of the two
norms' weights. To reach the limit, the weights would have to be near 30.
"""

import subprocess
import warnings
from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from ...config import FlashInferKernels as Kernels
from ...errors import DeviceError, ModelError
from ...model.devices import is_device_failure
from ..attention_backend import KeysValues, LayerAttention
from ..kv_pool import KVCachePool, PoolShape, gib
from ..page_table import PageTable, VisibleRanges
from .paged import TableTensors

_INT_WORKSPACE_BYTES = 8 << 20
"""Size in bytes of the buffer that the wrapper allocates for its plan: a constant in flashinfer."""

_FLOAT_WORKSPACE_BYTES = 256
"""Size in bytes of the workspace for partial results. Only fa2 needs one, and only if it splits keys into chunks."""


class Wrapper(Protocol):
    """The part of `flashinfer.BatchPrefillWithPagedKVCacheWrapper` that is used here."""

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
    ) -> None: ...

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor) -> Tensor: ...


class FlashInferBackend:
    """Calls the kernels once per layer for all streams of a step, whose page sizes must be equal.

    The plan is stored in buffers of the wrapper. So the calls of one step must finish before the next step is planned,
    and all steps must run on one CUDA stream.

    Args:
        wrapper: the kernels, for the pool's device, in NHD layout.
        kernels: name of the kernels.
    """

    whole_pages = True

    def __init__(self, wrapper: Wrapper, kernels: Kernels) -> None:
        self._wrapper = wrapper
        self.kernels = kernels
        self._copied: torch.cuda.Event | None = None

    def plan(self, pool: KVCachePool, visible: Sequence[VisibleRanges]) -> LayerAttention:
        """See `AttentionBackend`."""
        shape, table = pool.shape, PageTable.of(visible)
        rows = table.query_starts[-1]
        table.check(pool.spans.capacity // table.page_tokens, shape.heads * shape.head_dim)
        needed = plan_bytes(self.kernels, rows, len(visible), shape)
        if needed > _INT_WORKSPACE_BYTES:
            raise ValueError(f"a plan for {rows} queries needs {gib(needed)}, the limit is {gib(_INT_WORKSPACE_BYTES)}")
        self._plan(table, shape)

        def attend(layer: int, query: Tensor, beside: KeysValues | None = None) -> Tensor:
            assert beside is None, "refused by the page table"
            if query.shape != (rows, shape.heads, shape.head_dim) or query.dtype is not shape.dtype:
                raise ValueError(f"planned for {rows} queries in {shape.dtype}, got {query.dtype} {list(query.shape)}")
            query = query.contiguous()
            return self._wrapper.run(query, pool.pages(layer, table.page_tokens), out=torch.empty_like(query))

        return attend

    def _plan(self, table: PageTable, shape: PoolShape) -> None:
        # The wrapper writes its plan to one pinned buffer, which the previous copy to the device may still be reading.
        if self._copied is not None:
            self._copied.synchronize()
        arrays = TableTensors.of(table)
        # Keys are not split into chunks, for two reasons. Merging the chunks' rounded outputs raises the error from
        # 2.0e-3 to 2.6e-3 (fa2, one stream). And whether keys are split depends on the other streams in the step, which
        # could then change this stream's results.
        self._wrapper.plan(
            arrays.qo_indptr,
            arrays.kv_indptr,
            arrays.kv_indices,
            arrays.last_page_len,
            shape.heads,
            shape.heads,
            shape.head_dim,
            table.page_tokens,
            causal=False,
            q_data_type=shape.dtype,
            kv_data_type=shape.dtype,
            disable_split_kv=True,
        )
        if shape.device.type == "cuda":
            self._copied = self._copied or torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(shape.device))


def open_flashinfer(shape: PoolShape, kernels: Literal["auto"] | Kernels) -> FlashInferBackend:
    """Load the kernels, compile them if no compiled ones are installed, and test them on a known result.

    Args:
        shape: shape of the pool that the kernels will read, on a CUDA device; `kernel_obstacle` must have found no
            obstacle.
        kernels: which kernels; `auto` is fa3 on a device of capability 9 (Hopper), else fa2.

    Raises:
        ModelError: the kernels cannot run on this machine; the message says why.
        DeviceError: the device failed.
    """
    try:
        capability = torch.cuda.get_device_capability(shape.device)
        chosen = _choose_kernels(kernels, capability)
        backend = FlashInferBackend(_make_wrapper(shape, chosen), chosen)
        _test(backend, shape)
    except (ImportError, RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
        if is_device_failure(error):
            raise DeviceError(f"{shape.device} failed: {error}") from error
        raise ModelError(f"flashinfer cannot run on this machine: {type(error).__name__}: {error}") from error
    return backend


def plan_bytes(kernels: Kernels, rows: int, streams: int, shape: PoolShape) -> int:
    """Upper bound of the size of a plan in bytes. The plan holds arrays of 32-bit numbers.

    The numbers of arrays are from flashinfer's scheduler.cuh. `PrefillPlan` (fa2) has 3 arrays with one entry per tile
    of at least 16 queries, and 1 array with one entry per query. `PrefillSM90Plan` (fa3) has 7 arrays with one entry
    per head and tile of at least 128 queries.
    """
    if kernels == "fa2":
        return 4 * (3 * (rows // 16 + streams) + rows + streams) + 1024
    return 4 * 7 * shape.heads * (rows // 128 + streams) + 1024


def _choose_kernels(kernels: Literal["auto"] | Kernels, capability: tuple[int, int]) -> Kernels:
    actual = f"{capability[0]}.{capability[1]}"
    if capability < (8, 0):
        raise ValueError(f"flashinfer requires a device of capability 8.0 or newer, but this one has {actual}")
    if kernels == "fa3" and capability[0] != 9:
        raise ValueError(f"fa3 requires a device of capability 9 (Hopper), but this one has {actual}")
    if kernels == "auto":
        return "fa3" if capability[0] == 9 else "fa2"
    return kernels


def _make_wrapper(shape: PoolShape, kernels: Kernels) -> Wrapper:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # flashinfer uses deprecated functions of other packages
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    workspace = torch.empty(_FLOAT_WORKSPACE_BYTES, dtype=torch.uint8, device=shape.device)
    wrapper: Wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=kernels)
    return wrapper


def _test(backend: FlashInferBackend, shape: PoolShape) -> None:
    # All values are ones, and the slots around them hold NaN: kernels that read padding or wrong slots do not return
    # ones.
    pool = KVCachePool(PoolShape(1, shape.heads, shape.head_dim, shape.dtype, shape.device))
    page, rows, tokens = 5, 7, 13
    pool.allocate_pages(page, 4)
    pool.layer(0).fill_(float("nan"))
    pool.layer(0)[:, page : page + tokens] = 1
    query = torch.ones((rows, shape.heads, shape.head_dim), dtype=shape.dtype, device=shape.device)
    out = backend.plan(pool, [VisibleRanges(rows, ((page, page + tokens),), page)])(0, query)
    if not torch.equal(out, torch.ones_like(out)):
        raise ValueError("flashinfer's kernels return wrong results on this device")
