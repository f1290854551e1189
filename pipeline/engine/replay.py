"""The last images of a stream, from which its memory is rebuilt when an epoch is over."""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor


class ReplayBuffer:
    """Keeps a stream's last images on their device, with one byte per number.

    Preprocessing yields whole levels k / 255, so bytes lose nothing. An image of 518 x 378 pixels takes 587 kB, a
    quarter of its size in float32.

    Args:
        count: maximum number of images kept; 0 for none.
    """

    def __init__(self, count: int) -> None:
        self._levels: deque[Tensor] = deque(maxlen=count)

    def __len__(self) -> int:
        return len(self._levels)

    @property
    def nbytes(self) -> int:
        """Total size of the kept images, in bytes."""
        return sum(levels.nbytes for levels in self._levels)

    @property
    def levels(self) -> tuple[Tensor, ...]:
        """The images as whole levels, oldest first, uint8 [3, h, w] each; they are never written to."""
        return tuple(self._levels)

    def add(self, image: Tensor) -> None:
        """Add a copy of an image, which must be float32 [3, h, w] and hold whole levels k / 255."""
        if self._levels.maxlen:
            self._levels.append((image * 255.0).round_().to(torch.uint8))

    def images(self) -> tuple[Tensor, ...]:
        """The images as they were added, oldest first."""
        return tuple(levels.float() / 255.0 for levels in self._levels)

    def put(self, levels: Sequence[Tensor]) -> None:
        """Replace all images by `levels`, which must have the form of the property `levels`."""
        self._levels.clear()
        self._levels.extend(levels)

    def clear(self) -> None:
        """Remove all images."""
        self._levels.clear()
