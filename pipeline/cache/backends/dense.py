"""The dense backend: PyTorch's attention over the visible slots, on any device and in any floating-point format."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..attention_backend import KeysValues, LayerAttention
from ..kv_pool import KVCachePool
from ..page_table import VisibleRanges


class DenseBackend:
    """Calls PyTorch once per group of queries that see the same slots. The other backends are tested against it."""

    whole_pages = False

    def plan(self, pool: KVCachePool, visible: Sequence[VisibleRanges]) -> LayerAttention:
        """See `AttentionBackend`. Page sizes may be mixed."""
        rows, own = [group.rows for group in visible], [group.beside for group in visible]

        def attend(layer: int, query: Tensor, beside: KeysValues | None = None) -> Tensor:
            cache, queries = pool.layer(layer), query.split_with_sizes(rows)
            seen = [gather(cache, group) for group in visible]
            if beside is not None:
                others = torch.stack(beside).split_with_sizes(own, dim=1)
                seen = [torch.cat(parts, dim=1) for parts in zip(seen, others, strict=True)]
            outputs = [attend_all(part, *cached.unbind(0)) for part, cached in zip(queries, seen, strict=True)]
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

        return attend


def gather(cache: Tensor, visible: VisibleRanges) -> Tensor:
    """Select the visible keys and values [2, n, H, D] from a layer's [2, T, H, D]; a view if they are one range."""
    parts = [cache[:, start:stop] for start, stop in visible.ranges or ((0, 0),)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def attend_all(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v of queries [R, H, D] over all keys and values [n, H, D]; returns [R, H, D]."""
    query, key, value = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))  # [1, H, ., D]
    return functional.scaled_dot_product_attention(query, key, value).squeeze(0).transpose(0, 1)
