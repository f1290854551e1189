"""The dense backend: each stream's range of places read by PyTorch's attention, on any device in any float format."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from .page_table import Sight
from .pool import Pool
from .step import Attend


class DenseBackend:
    """One call a stream: the reference that other backends are compared with."""

    def plan(self, pool: Pool, sights: Sequence[Sight]) -> Attend:
        """See `Backend`. Any mixture of page sizes will do."""
        rows, ranges = [sight.rows for sight in sights], [slice(sight.start, sight.stop) for sight in sights]

        def attend(layer: int, query: Tensor) -> Tensor:
            keys, values = pool.layer(layer).unbind(0)
            parts = query.split_with_sizes(rows)
            outputs = [attend_all(part, keys[seen], values[seen]) for part, seen in zip(parts, ranges, strict=True)]
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

        return attend


def attend_all(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v of queries [R, H, D] over all of keys and values [n, H, D]; gives [R, H, D]."""
    query, key, value = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))  # [1, H, ., D]
    return functional.scaled_dot_product_attention(query, key, value).squeeze(0).transpose(0, 1)
