"""The dense backend: the places of each sight read by PyTorch's attention, on any device in any float format."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..kv_pool import KVCachePool
from ..page_table import VisibleRanges
from ..step import Attend


class DenseBackend:
    """One call for each sight: the reference that other backends are compared with."""

    whole_pages = False

    def plan(self, pool: KVCachePool, sights: Sequence[VisibleRanges]) -> Attend:
        """See `Backend`. Any mixture of page sizes will do."""
        rows = [sight.rows for sight in sights]

        def attend(layer: int, query: Tensor) -> Tensor:
            memory, parts = pool.layer(layer), query.split_with_sizes(rows)
            outputs = [
                attend_all(part, *seen(memory, sight).unbind(0)) for part, sight in zip(parts, sights, strict=True)
            ]
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

        return attend


def seen(memory: Tensor, sight: VisibleRanges) -> Tensor:
    """Keys and values [2, n, H, D] of the places that a sight names in a layer's [2, T, H, D]; a view if it can be."""
    parts = [memory[:, start:stop] for start, stop in sight.ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def attend_all(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v of queries [R, H, D] over all of keys and values [n, H, D]; gives [R, H, D]."""
    query, key, value = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))  # [1, H, ., D]
    return functional.scaled_dot_product_attention(query, key, value).squeeze(0).transpose(0, 1)
