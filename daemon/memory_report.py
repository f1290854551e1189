"""What a config takes of its device's memory, as sums that can be checked: the weights, and each camera's stream.

The sums are the pool's own: a camera that `max_streams` lets in takes exactly this once its first frame has shown its
size.
"""

from retinad.pipeline.admission import pool_shape
from retinad.pipeline.cache.pool import gib
from retinad.pipeline.config import CameraConfig, ModelConfig, ResizeMode
from retinad.pipeline.errors import SourceError
from retinad.pipeline.frames import Size
from retinad.pipeline.model.checkpoint import blank_model
from retinad.pipeline.packing import TokenShape
from retinad.pipeline.preprocess import Fit, fit
from retinad.pipeline.run_length import step_bytes
from retinad.pipeline.sources.parse import SyntheticSpec, parse_source

from .config import ServiceConfig

USUAL_SIZE = (640, 480)
"""What a camera's pictures are taken to be where nothing says their size: 4:3."""

_ADVICE = (
    "no camera was opened: `retinad cameras` finds out sizes, --source-size WIDTHxHEIGHT puts one in place of 640x480"
)


def memory_report(config: ServiceConfig, size: Size | None) -> str:
    """Lines for people: the weights, each camera, and their sum.

    Args:
        config: what would run.
        size: width and height of every camera's pictures, or None for what the config says of each, else 4:3.

    Raises:
        ValueError: pictures of this size cannot be fitted to the model.
    """
    model = config.model
    weights = list(blank_model(model).state_dict().values())
    total = weights_bytes = sum(value.nbytes for value in weights)
    numbers = sum(value.numel() for value in weights) / 1e6
    mixers = ", ".join(f"{model.running_mixers.count(name)} {name}" for name in dict.fromkeys(model.running_mixers))
    lines = [f"weights: {gib(weights_bytes)} for {numbers:.1f} million numbers; global blocks that run: {mixers or 0}"]
    for camera in config.cameras:
        taken, text = _camera(model, camera, size or _known_size(camera))
        total += taken
        lines.append(text)
    lines.append(f"together: {gib(total)}, and what a step computes with")
    if size is None and not all(map(_known_size, config.cameras)):
        lines.append(_ADVICE)
    return "\n".join(lines)


def tokens_of_a_frame(model: ModelConfig, size: Size = USUAL_SIZE, resize: ResizeMode = ResizeMode.CROP) -> int:
    """P of pictures of this size."""
    return _tokens(model, fit(size, resize, model.image_width, model.network.patch_size)).tokens


def _camera(model: ModelConfig, camera: CameraConfig, known: Size | None) -> tuple[int, str]:
    # Bytes of its stream, and the lines that say so.
    how = fit(known or USUAL_SIZE, camera.resize, model.image_width, model.network.patch_size)
    tokens, shape = _tokens(model, how), pool_shape(model)
    layout = tokens.layout(camera.stream)
    width, height = how.model_size
    pictures = camera.stream.scale_frames * 3 * width * height if camera.stream.epoch_frames else 0
    taken = shape.bytes_of(layout) + pictures
    assumed = "" if known else ", assumed"
    lines = [
        f"{camera.name}: {gib(taken)}",
        f"    pictures of {'{}x{}'.format(*how.source_size)}{assumed}, {width}x{height} in the model",
        f"    memory: {shape.describe(layout) if model.running_mixers else 'none, with no global block that runs'}",
    ]
    if pictures:
        lines.append(f"    pictures for the next epoch: {gib(pictures)}")
    step = f"{gib(camera.run * step_bytes(model, tokens))} for {camera.run} frame{'s' * (camera.run > 1)}"
    return taken, "\n".join([*lines, f"    a step computes with about {step}"])


def _tokens(model: ModelConfig, how: Fit) -> TokenShape:
    return TokenShape.of(model.network, how.grid)


def _known_size(camera: CameraConfig) -> Size | None:
    # What the config says of its pictures, without opening it.
    if camera.size is not None:
        return camera.size
    try:
        spec = parse_source(camera.source)
    except SourceError:
        return None
    return (spec.width, spec.height) if isinstance(spec, SyntheticSpec) else None
