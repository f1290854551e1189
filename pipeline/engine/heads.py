"""Makes the output heads that a config asks for, and computes the largest record."""

from ..config import ModelConfig
from ..frames import MAP_KINDS, Output, OutputKind, TokenOutput
from ..model.checkpoint import blank_model
from ..model.network import Network
from .map_outputs import MapOutput
from .outputs import OutputHead, OutputHeads
from .pose_outputs import DERIVED, ENCODING, PoseOutput, WindowPoseOutput
from .token_outputs import TokenHead
from .token_shape import TokenShape


def make_heads(config: ModelConfig, model: Network) -> OutputHeads:
    """Make the heads of a model, in the order in which their outputs are published."""
    heads: list[OutputHead] = []
    if OutputKind.FEATURES in config.outputs:
        heads += [TokenHead(layer, config.output) for layer in config.output.layers]
    scale, deepest = model.scale_head, config.network.depth - 1
    if model.camera_head is not None:
        head = model.camera_head
        heads.append(PoseOutput(deepest, head) if scale is None else WindowPoseOutput(deepest, head, scale))
    for kind, dense in ((OutputKind.DEPTH, model.depth_head), (OutputKind.POINTS, model.point_head)):
        if dense is not None:
            layers: tuple[int, ...] = config.network.dense_head.layers
            if scale is not None and deepest not in layers:
                layers = (*layers, deepest)
            heads.append(MapOutput(kind, layers, dense, config.network.patch_size, config.output, scale))
    made = OutputHeads(heads)
    assert made.layers[-1] == config.deepest_layer, "blocks run as far as heads read"
    return made


def largest_outputs(config: ModelConfig) -> tuple[Output, ...]:
    """The outputs for a square image. It has the largest record, because no image is higher than it is wide."""
    side = config.image_width // config.network.patch_size
    made = make_heads(config, blank_model(config)).outputs(TokenShape.of(config.network, (side, side)))
    if OutputKind.POSE not in config.outputs:
        return made
    tokens = [output for output in made if isinstance(output, TokenOutput)]
    maps = [output for output in made if output.kind in MAP_KINDS]
    return (*tokens, ENCODING, *maps, *DERIVED)


def largest_record_bytes(config: ModelConfig) -> int:
    """Total size of the tensors in the largest record, in bytes."""
    return sum(output.nbytes for output in largest_outputs(config))
