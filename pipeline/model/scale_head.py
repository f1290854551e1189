"""The head of HorizonStream that reads the metric scale from a frame's first token (arXiv 2605.23889)."""

from collections.abc import Sequence

from torch import Tensor, nn


class MetricScaleHead(nn.Sequential):
    """Estimates how many metres the network's unit of length has, in float32.

    Args:
        channels: 2C, the number of channels of the token.
        hidden: numbers of hidden channels.
    """

    def __init__(self, channels: int, hidden: Sequence[int]) -> None:
        first, second = hidden
        super().__init__(
            nn.Linear(channels, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 1)
        )

    def scale(self, tokens: Tensor) -> Tensor:
        """The scale of each frame, float32 [F], from its first token after the deepest pair, float32 [F, 2C]."""
        logs: Tensor = self(tokens)
        return logs[:, 0].exp()
