"""Makes the output heads that a config asks for, and computes the largest record."""

from ..config import ModelConfig
from ..frames import Output, OutputKind
from ..model.checkpoint import blank_model
from ..model.network import Network
from .map_outputs import MapOutput
from .outputs import OutputHead, OutputHeads
from .pose_outputs import DERIVED, PoseOutput
from .token_outputs import TokenHead
from .token_shape import TokenShape


def make_heads(config: ModelConfig, model: Network) -> OutputHeads:
    """Make the heads of a model, in the order in which their outputs are published."""
    heads: list[OutputHead] = []
    if OutputKind.FEATURES in config.outputs:
        heads += [TokenHead(layer, config.output) for layer in config.output.layers]
    if model.camera_head is not None:
        heads.append(PoseOutput(config.network.depth - 1, model.camera_head))
    for kind, head in ((OutputKind.DEPTH, model.depth_head), (OutputKind.POINTS, model.point_head)):
        if head is not None:
            layers = config.network.dense_head.layers
            heads.append(MapOutput(kind, layers, head, config.network.patch_size, config.output))
    made = OutputHeads(heads)
    assert made.layers[-1] == config.deepest_layer, "blocks run as far as heads read"
    return made


def largest_outputs(config: ModelConfig) -> tuple[Output, ...]:
    """The outputs for a square image. It has the largest record, because no image is higher than it is wide."""
    side = config.image_width // config.network.patch_size
    made = make_heads(config, blank_model(config)).outputs(TokenShape.of(config.network, (side, side)))
    return (*made, *DERIVED) if OutputKind.POSE in config.outputs else made


def largest_record_bytes(config: ModelConfig) -> int:
    """Total size of the tensors in the largest record, in bytes."""
    return sum(output.nbytes for output in largest_outputs(config))
