"""The output head that publishes the tokens of a layer pair as features."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from ..config import OutputConfig
from ..frames import OutputKind, TokenGroup, TokenOutput
from .outputs import HeadInputs
from .token_shape import TokenShape


@dataclass(frozen=True, slots=True)
class TokenHead:
    """Publishes groups of one layer pair's tokens, see `TokenOutput`; implements `OutputHead`.

    Each `pooled` token is the mean of `pool` x `pool` patches, or of the remaining ones at the right and bottom edges.

    Attributes:
        layer: 0-based index of the layer pair.
        config: which groups are published, and in which number format.
    """

    layer: int
    config: OutputConfig

    @property
    def kind(self) -> OutputKind:
        """Features."""
        return OutputKind.FEATURES

    @property
    def layers(self) -> tuple[int, ...]:
        """The layer pair, as the only one."""
        return (self.layer,)

    def outputs(self, shape: TokenShape) -> tuple[TokenOutput, ...]:
        """One output per group."""
        channels = shape.parts * shape.channels
        return tuple(
            TokenOutput.of(
                self.layer, group, (*shape.group_shape(group, self.config.pool), channels), self.config.dtype
            )
            for group in self.config.tokens
        )

    def gather(self, inputs: HeadInputs, targets: Sequence[Tensor]) -> None:
        """See `OutputHead.gather`."""
        (layer,), shape = inputs.layers, inputs.shape
        for group, target in zip(self.config.tokens, targets, strict=True):
            parts = target.view(*target.shape[:-1], shape.parts, shape.channels)
            for part, tokens in enumerate(layer.parts):
                parts[..., part, :] = _group(tokens, group, shape, self.config.pool)


def _group(tokens: Tensor, group: TokenGroup, shape: TokenShape, pool: int) -> Tensor:
    match group:
        case TokenGroup.CAMERA:
            return tokens[:, :1]
        case TokenGroup.REGISTERS:
            return tokens[:, 1 : shape.special - 1]
        case TokenGroup.SCALE:
            return tokens[:, shape.special - 1 : shape.special]
    patches = tokens[:, shape.special :].view(-1, *shape.grid, shape.channels)
    if group is TokenGroup.PATCH:
        return patches
    pooled = functional.avg_pool2d(patches.permute(0, 3, 1, 2), pool, ceil_mode=True)
    return pooled.permute(0, 2, 3, 1)
