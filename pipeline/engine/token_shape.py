"""The number and kinds of tokens in one frame, and the number of channels of each token."""

from dataclasses import dataclass, replace

from ..cache.window import CacheLayout
from ..config import NetworkConfig, StreamConfig
from ..frames import TokenGroup


@dataclass(frozen=True, slots=True)
class TokenShape:
    """A frame has S special tokens, then a grid of patch tokens, with C channels each.

    The special tokens of LingBot-Map are camera, registers and scale. HorizonStream has a scale token alone, and tokens
    for each frame of the window.

    Attributes:
        registers: number of register tokens.
        grid: numbers of rows and columns of patches.
        channels: C, the number of channels.
        blocks: whether the network has blocks. If it has none, there are no special tokens, and one part is published
            instead of two (see `parts`).
        slot_tokens: number of tokens for each frame of the window, beside the P tokens; above 0 for HorizonStream.
        window: with `slot_tokens`, the number of frames of the window, which is the same for all frames of a pass.
    """

    registers: int
    grid: tuple[int, int]
    channels: int
    blocks: bool = True
    slot_tokens: int = 0
    window: int = 0

    @classmethod
    def of(cls, network: NetworkConfig, grid: tuple[int, int]) -> "TokenShape":
        """The tokens that a network makes of an image with this grid of patches."""
        return cls(network.register_tokens, grid, network.channels, network.depth > 0, network.slot_tokens)

    @property
    def special(self) -> int:
        """S, the number of special tokens."""
        if self.slot_tokens:
            return 1
        return self.registers + 2 if self.blocks else 0

    @property
    def parts(self) -> int:
        """Number of parts, of C channels each, that are published side by side.

        With blocks, there are two: the output of the frame block, and that of the global block.
        """
        return 2 if self.blocks else 1

    @property
    def tokens(self) -> int:
        """P, the number of tokens per frame."""
        return self.special + self.grid[0] * self.grid[1]

    @property
    def row_tokens(self) -> int:
        """Number of tokens that blocks compute per frame: the P tokens, and those for the frames of the window."""
        return self.tokens + self.slot_tokens * self.window

    def seeing(self, window: int) -> "TokenShape":
        """The shape with windows of this number of frames; unchanged if the network has no `slot_tokens`."""
        return replace(self, window=window) if self.slot_tokens else self

    def layout(self, stream: StreamConfig) -> CacheLayout:
        """Make the layout of the KV cache of a stream with such frames.

        Raises:
            ValueError: the network cannot follow the stream's settings.
        """
        if self.slot_tokens:
            return CacheLayout.window_alone(stream, self.tokens, self.slot_tokens)
        return CacheLayout.of(stream, self.tokens, self.special)

    def group_shape(self, group: TokenGroup, pool: int) -> tuple[int, ...]:
        """The shape of a published group without its channels."""
        match group:
            case TokenGroup.CAMERA | TokenGroup.SCALE:
                return (1,)
            case TokenGroup.REGISTERS:
                return (self.registers,)
            case TokenGroup.PATCH:
                return self.grid
            case TokenGroup.POOLED:
                return (-(-self.grid[0] // pool), -(-self.grid[1] // pool))
