"""The FlashInfer backend: all streams of a step in one call of its paged kernels. The one file that imports flashinfer.

Checked against flashinfer 0.6.13. A step is planned from host tensors, so it reads nothing back from the device; pages
are the pool's own storage, not copies; a page is a frame's tokens, whatever their number, and the last page says how
many of its tokens count, so padding is never attended to (rounding 777 tokens up to 1024 was 16 % off elsewhere).

Limit of these kernels: a query whose products with all keys, before the scale, are below -5e4 gets zeros. Queries and
keys here are layer-normalised, so a product is at most D (64) times the norms' weights: those would have to be near 30.
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
from ..kv_pool import KVCachePool, PoolShape, gib
from ..page_table import PageTable, VisibleRanges
from ..step import Attend
from .paged import TableTensors

_INT_WORKSPACE_BYTES = 8 << 20
"""What the wrapper allocates for its plan; its own constant."""

_FLOAT_WORKSPACE_BYTES = 256
"""For partial results, of which there are none: fa3 has none, and fa2 only where it cuts keys into chunks."""


class Wrapper(Protocol):
    """What is used of `flashinfer.BatchPrefillWithPagedKVCacheWrapper`."""

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
    """Attention of a step's streams, all of one page size, in one call a layer.

    A plan lives in buffers of the wrapper's: a step's calls must be over before the next step is planned, and steps
    come one after the other, on one CUDA stream.

    Args:
        wrapper: the kernels, for the pool's device, with NHD layout.
        kernels: which kernels they are.
    """

    whole_pages = True

    def __init__(self, wrapper: Wrapper, kernels: Kernels) -> None:
        self._wrapper = wrapper
        self.kernels = kernels
        self._copied: torch.cuda.Event | None = None

    def plan(self, pool: KVCachePool, sights: Sequence[VisibleRanges]) -> Attend:
        """See `Backend`."""
        shape, table = pool.shape, PageTable.of(sights)
        rows = table.query_starts[-1]
        table.check(pool.spans.capacity // table.page_tokens, shape.heads * shape.head_dim)
        needed = plan_bytes(self.kernels, rows, len(sights), shape)
        if needed > _INT_WORKSPACE_BYTES:
            raise ValueError(f"a plan for {rows} queries takes {gib(needed)}, of {gib(_INT_WORKSPACE_BYTES)} at most")
        self._plan(table, shape)

        def attend(layer: int, query: Tensor) -> Tensor:
            if query.shape != (rows, shape.heads, shape.head_dim) or query.dtype is not shape.dtype:
                raise ValueError(f"planned for {rows} queries in {shape.dtype}, got {query.dtype} {list(query.shape)}")
            query = query.contiguous()
            return self._wrapper.run(query, pool.pages(layer, table.page_tokens), out=torch.empty_like(query))

        return attend

    def _plan(self, table: PageTable, shape: PoolShape) -> None:
        # The wrapper writes its plan to one pinned buffer, which the copy to the device may still be reading.
        if self._copied is not None:
            self._copied.synchronize()
        arrays = TableTensors.of(table)
        # Chunks of keys are merged from rounded outputs: an error of 2.6e-3 instead of 2.0e-3 (fa2, one stream). And
        # whether there are any depends on the other streams; without, they cannot change this one's numbers.
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
    """Load the kernels, compiling them first where no compiled ones are installed, and try them on a known answer.

    Args:
        shape: of the pool whose memories they will read, on a CUDA device; `kernel_obstacle` knows nothing against it.
        kernels: which; `auto` is fa3 on a device of capability 9 (Hopper), else fa2.

    Raises:
        ModelError: they cannot run here; the message says why.
        DeviceError: the device failed.
    """
    try:
        capability = torch.cuda.get_device_capability(shape.device)
        chosen = _choose_kernels(kernels, capability)
        backend = FlashInferBackend(_make_wrapper(shape, chosen), chosen)
        _try(backend, shape)
    except (ImportError, RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
        if is_device_failure(error):
            raise DeviceError(f"{shape.device} failed: {error}") from error
        raise ModelError(f"flashinfer cannot run here: {type(error).__name__}: {error}") from error
    return backend


def plan_bytes(kernels: Kernels, rows: int, streams: int, shape: PoolShape) -> int:
    """Bytes of a plan for so many queries, at most: 32-bit numbers, for each tile of queries or for each query.

    From `PrefillPlan` (3 arrays a tile of at least 16 queries, 1 a query) and `PrefillSM90Plan` (7 arrays a tile of at
    least 128 queries and a head) in scheduler.cuh.
    """
    if kernels == "fa2":
        return 4 * (3 * (rows // 16 + streams) + rows + streams) + 1024
    return 4 * 7 * shape.heads * (rows // 128 + streams) + 1024


def _choose_kernels(kernels: Literal["auto"] | Kernels, capability: tuple[int, int]) -> Kernels:
    if capability < (8, 0):
        raise ValueError(f"it needs a device of capability 8.0 or newer, this one has {capability[0]}.{capability[1]}")
    if kernels == "fa3" and capability[0] != 9:
        raise ValueError(f"fa3 needs a device of capability 9 (Hopper), this one has {capability[0]}.{capability[1]}")
    if kernels == "auto":
        return "fa3" if capability[0] == 9 else "fa2"
    return kernels


def _make_wrapper(shape: PoolShape, kernels: Kernels) -> Wrapper:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own use of what others deprecate
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    workspace = torch.empty(_FLOAT_WORKSPACE_BYTES, dtype=torch.uint8, device=shape.device)
    wrapper: Wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=kernels)
    return wrapper


def _try(backend: FlashInferBackend, shape: PoolShape) -> None:
    # Ones for values and NaN around them: what reads padding, or wrongly, does not give ones.
    pool = KVCachePool(PoolShape(1, shape.heads, shape.head_dim, shape.dtype, shape.device))
    page, rows, seen = 5, 7, 13
    pool.hold_pages(page, 4)
    pool.layer(0).fill_(float("nan"))
    pool.layer(0)[:, page : page + seen] = 1
    query = torch.ones((rows, shape.heads, shape.head_dim), dtype=shape.dtype, device=shape.device)
    out = backend.plan(pool, [VisibleRanges(rows, ((page, page + seen),), page)])(0, query)
    if not torch.equal(out, torch.ones_like(out)):
        raise ValueError("its kernels give wrong numbers on this device")
