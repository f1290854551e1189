"""The paged backend: page tables read by gathering pages in plain PyTorch, on any device, slowly.

It reads through the very arrays that the FlashInfer backend hands to its kernels: it proves them right without a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kv_pool import KVCachePool
from ..page_table import PageTable, VisibleRanges
from ..step import Attend
from .dense import attend_all


@dataclass(frozen=True, slots=True, eq=False)
class TableTensors:
    """A page table as the kernels take it: int32 on the host, named as there.

    Attributes:
        qo_indptr: [B + 1], first query of each stream.
        kv_indptr: [B + 1], first entry of each stream in `kv_indices`.
        kv_indices: numbers of pages.
        last_page_len: [B], tokens of each last page.
    """

    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    last_page_len: Tensor

    @classmethod
    def of(cls, table: PageTable) -> "TableTensors":
        """The arrays of a table."""
        arrays = (table.query_starts, table.page_starts, table.pages, table.last_page_tokens)
        return cls(*(torch.tensor(array, dtype=torch.int32) for array in arrays))


class PagedBackend:
    """The reference of paged reading."""

    whole_pages = True

    def plan(self, pool: KVCachePool, sights: Sequence[VisibleRanges]) -> Attend:
        """See `Backend`."""
        table = PageTable.of(sights)
        table.check(pool.spans.capacity // table.page_tokens, pool.shape.heads * pool.shape.head_dim)
        arrays = TableTensors.of(table)

        def attend(layer: int, query: Tensor) -> Tensor:
            return attend_pages(query, pool.pages(layer, table.page_tokens), arrays)

        return attend


def attend_pages(query: Tensor, pages: tuple[Tensor, Tensor], arrays: TableTensors) -> Tensor:
    """Attention of queries [R, H, D] to the pages that a table names, of keys and values [pages, page size, H, D]."""
    keys, values = pages
    page = keys.shape[1]
    outputs = []
    for stream, last in enumerate(arrays.last_page_len.tolist()):
        rows = slice(*arrays.qo_indptr[stream : stream + 2].tolist())
        numbers = arrays.kv_indices[slice(*arrays.kv_indptr[stream : stream + 2].tolist())].to(keys.device)
        seen = (len(numbers) - 1) * page + last
        outputs.append(attend_all(query[rows], *(part[numbers].flatten(0, 1)[:seen] for part in (keys, values))))
    return torch.cat(outputs)
