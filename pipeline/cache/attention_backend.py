"""The protocol of attention backends. The cache knows them through it alone; `backends` has the implementations."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from .kv_pool import KVCachePool
from .page_table import VisibleRanges

LayerAttention = Callable[[int, Tensor], Tensor]
"""Attention of a planned step: takes a layer's index and its queries [R, H, D], returns outputs of the same shape."""


class AttentionBackend(Protocol):
    """Computes softmax(q k^T / sqrt(D)) v over slots of a pool, without a mask.

    Attributes:
        whole_pages: whether it reads whole pages, of which only the last may be partial. Such a backend cannot read a
            wrapped history ring, which an endless stream has when a step may have several of its frames.
    """

    whole_pages: bool

    def plan(self, pool: KVCachePool, visible: Sequence[VisibleRanges]) -> LayerAttention:
        """Prepare a step, once for all its layers, from host values only.

        Args:
            pool: holds keys and values when the result is called; its spans must not move until then.
            visible: what the queries attend to, in the order of the queries.

        Raises:
            ValueError: the backend does not support these ranges.
        """
