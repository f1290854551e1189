"""The tokens of one frame: how many there are, of which kind, and how many channels each has."""

from dataclasses import dataclass

from ..cache.window import CacheLayout
from ..config import NetworkConfig, StreamConfig
from ..frames import TokenGroup


@dataclass(frozen=True, slots=True)
class TokenShape:
    """S special tokens (camera, registers, scale), then a grid of patch tokens; C channels each.

    Attributes:
        registers: register tokens.
        grid: rows and columns of patches.
        channels: C.
        blocks: whether the network has blocks. Without, there are no special tokens, and one part is published
            instead of two.
    """

    registers: int
    grid: tuple[int, int]
    channels: int
    blocks: bool = True

    @classmethod
    def of(cls, network: NetworkConfig, grid: tuple[int, int]) -> "TokenShape":
        """The tokens that a network makes of an image with this grid of patches."""
        return cls(network.register_tokens, grid, network.channels, network.depth > 0)

    @property
    def special(self) -> int:
        """S."""
        return self.registers + 2 if self.blocks else 0

    @property
    def parts(self) -> int:
        """Tensors of C channels that are published side by side: after the frame block and after the global block."""
        return 2 if self.blocks else 1

    @property
    def tokens(self) -> int:
        """P."""
        return self.special + self.grid[0] * self.grid[1]

    def layout(self, stream: StreamConfig) -> CacheLayout:
        """How the KV cache of a stream of such frames is laid out."""
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
