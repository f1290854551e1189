"""The last images of a stream, from which its memory is rebuilt when an epoch is over."""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor


class ReplayBuffer:
    """Keeps the last images on their device, one byte a number.

    Preprocessing yields whole levels of 255, so nothing is lost: an image of 518 x 378 takes 587 kB, a quarter of its
    size in float32.

    Args:
        count: images kept at most; 0 for none.
    """

    def __init__(self, count: int) -> None:
        self._levels: deque[Tensor] = deque(maxlen=count)

    def __len__(self) -> int:
        return len(self._levels)

    @property
    def nbytes(self) -> int:
        """Bytes of all images."""
        return sum(levels.nbytes for levels in self._levels)

    @property
    def levels(self) -> tuple[Tensor, ...]:
        """The images, oldest first, uint8 [3, h, w] each; nothing writes to them."""
        return tuple(self._levels)

    def add(self, image: Tensor) -> None:
        """Add a copy of an image, float32 [3, h, w] of whole levels k / 255."""
        if self._levels.maxlen:
            self._levels.append((image * 255.0).round_().to(torch.uint8))

    def images(self) -> tuple[Tensor, ...]:
        """The images as they were added, oldest first."""
        return tuple(levels.float() / 255.0 for levels in self._levels)

    def put(self, levels: Sequence[Tensor]) -> None:
        """Replace all images by these, as returned by `levels`."""
        self._levels.clear()
        self._levels.extend(levels)

    def clear(self) -> None:
        """Remove all images."""
        self._levels.clear()
