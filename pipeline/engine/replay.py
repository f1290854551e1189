"""The last pictures of a stream, from which its memory is made anew when an epoch is over."""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor


class ReplayBuffer:
    """Keeps the last pictures on their device, a byte a number.

    Pictures come out of the preprocessing as whole levels of 255, so nothing is lost: a picture of 518 x 378 takes
    587 kB, a quarter of what it takes in float32.

    Args:
        count: pictures that are kept at most; 0 for none.
    """

    def __init__(self, count: int) -> None:
        self._levels: deque[Tensor] = deque(maxlen=count)

    def __len__(self) -> int:
        return len(self._levels)

    @property
    def nbytes(self) -> int:
        """Bytes of them."""
        return sum(levels.nbytes for levels in self._levels)

    @property
    def levels(self) -> tuple[Tensor, ...]:
        """The pictures, oldest first, uint8 [3, h, w] each; nothing writes to them."""
        return tuple(self._levels)

    def add(self, image: Tensor) -> None:
        """Keep a picture, float32 [3, h, w] of whole levels k / 255; it is copied."""
        if self._levels.maxlen:
            self._levels.append((image * 255.0).round_().to(torch.uint8))

    def images(self) -> tuple[Tensor, ...]:
        """The pictures as they were added, oldest first."""
        return tuple(levels.float() / 255.0 for levels in self._levels)

    def put(self, levels: Sequence[Tensor]) -> None:
        """Keep these instead, as `levels` gave them."""
        self._levels.clear()
        self._levels.extend(levels)

    def clear(self) -> None:
        """Keep none."""
        self._levels.clear()
