"""The protocol of attention backends. The cache uses nothing else of a backend; `backends` has the implementations."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from .kv_pool import KVCachePool
from .page_table import VisibleRanges

KeysValues = tuple[Tensor, Tensor]
"""Keys and values [n, H, D] each."""


class LayerAttention(Protocol):
    """The attention of a planned step."""

    def __call__(self, layer: int, query: Tensor, beside: KeysValues | None = None, /) -> Tensor:
        """Compute the attention of one layer.

        Args:
            layer: index of the layer.
            query: queries [R, H, D] of all groups.
            beside: keys and values of the tokens that each group sees beside the slots, group by group; None if no
                group sees any.

        Returns:
            outputs of the shape of `query`.
        """


class AttentionBackend(Protocol):
    """Computes softmax(q k^T / sqrt(D)) v over slots of a pool, without a mask.

    Attributes:
        whole_pages: whether the backend reads whole pages; only the last page may then be partial. Such a backend
            cannot read a wrapped history ring, which occurs in an endless stream with several frames per step.
    """

    whole_pages: bool

    def plan(self, pool: KVCachePool, visible: Sequence[VisibleRanges]) -> LayerAttention:
        """Prepare the attention of a step, once for all layers, using only values on the host.

        Args:
            pool: holds the keys and values by the time the result is called; its spans must not move until then.
            visible: the slots that the queries attend to, in the order of the queries.

        Raises:
            ValueError: the backend does not support these ranges.
        """
