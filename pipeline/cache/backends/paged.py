"""The paged backend: gathers the pages of a page table in plain PyTorch. Works on any device, but slowly.

It reads the same arrays as the kernels of the FlashInfer backend, so these arrays can be tested without a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention_backend import KeysValues, LayerAttention
from ..kv_pool import KVCachePool
from ..page_table import PageTable, VisibleRanges
from .dense import attend_all


@dataclass(frozen=True, slots=True, eq=False)
class TableTensors:
    """A page table in the form that FlashInfer takes: int32 tensors on the host, with FlashInfer's names.

    Attributes:
        qo_indptr: [B + 1], index of each group's first query.
        kv_indptr: [B + 1], index of each group's first entry in `kv_indices`.
        kv_indices: page numbers.
        last_page_len: [B], number of valid tokens in each group's last page.
    """

    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    last_page_len: Tensor

    @classmethod
    def of(cls, table: PageTable) -> "TableTensors":
        """Convert a page table."""
        arrays = (table.query_starts, table.page_starts, table.pages, table.last_page_tokens)
        return cls(*(torch.tensor(array, dtype=torch.int32) for array in arrays))


class PagedBackend:
    """The backend that other backends that read pages are tested against."""

    whole_pages = True

    def plan(self, pool: KVCachePool, visible: Sequence[VisibleRanges]) -> LayerAttention:
        """See `AttentionBackend`."""
        table = PageTable.of(visible)
        table.check(pool.spans.capacity // table.page_tokens, pool.shape.heads * pool.shape.head_dim)
        arrays = TableTensors.of(table)

        def attend(layer: int, query: Tensor, beside: KeysValues | None = None) -> Tensor:
            assert beside is None, "refused by the page table"
            return attend_pages(query, pool.pages(layer, table.page_tokens), arrays)

        return attend


def attend_pages(query: Tensor, pages: tuple[Tensor, Tensor], arrays: TableTensors) -> Tensor:
    """Attention of queries [R, H, D] to the pages of a table; keys and values are [pages, page size, H, D]."""
    keys, values = pages
    page = keys.shape[1]
    outputs = []
    for group, last in enumerate(arrays.last_page_len.tolist()):
        rows = slice(*arrays.qo_indptr[group : group + 2].tolist())
        numbers = arrays.kv_indices[slice(*arrays.kv_indptr[group : group + 2].tolist())].to(keys.device)
        tokens = (len(numbers) - 1) * page + last
        outputs.append(attend_all(query[rows], *(part[numbers].flatten(0, 1)[:tokens] for part in (keys, values))))
    return torch.cat(outputs)
