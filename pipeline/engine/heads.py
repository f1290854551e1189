"""Makes the output heads that a config asks for, and computes the largest record. Loads no weights."""

from ..config import ModelConfig
from ..frames import Output
from .outputs import OutputHead, OutputHeads
from .token_outputs import TokenHead
from .token_shape import TokenShape


def make_heads(config: ModelConfig) -> OutputHeads:
    """Make the heads of a model, in the order in which their outputs are published."""
    heads: list[OutputHead] = [
        TokenHead(layer, config.output, checks_finite=layer == config.deepest_layer) for layer in config.output.layers
    ]
    made = OutputHeads(heads)
    assert made.layers[-1] == config.deepest_layer, "blocks run as far as heads read"
    return made


def largest_outputs(config: ModelConfig) -> tuple[Output, ...]:
    """The outputs for a square image. It has the largest record, because no image is higher than it is wide."""
    side = config.image_width // config.network.patch_size
    return make_heads(config).outputs(TokenShape.of(config.network, (side, side)))


def largest_record_bytes(config: ModelConfig) -> int:
    """Total size of the tensors in the largest record, in bytes."""
    return sum(output.nbytes for output in largest_outputs(config))
