"""What a config takes of its device's memory, as sums that can be checked: the weights, and each camera's stream.

The sums are the pool's own: a camera that `max_streams` lets in takes exactly this once its first frame has shown its
size.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from retinad.pipeline.cache.kv_pool import gib
from retinad.pipeline.config import CameraConfig, ModelConfig, ResizeMode
from retinad.pipeline.engine.admission import HEADROOM, pool_shape
from retinad.pipeline.engine.batch_size import step_bytes
from retinad.pipeline.engine.outputs import TokenShape
from retinad.pipeline.engine.preprocess import ResizeGeometry, resize_geometry
from retinad.pipeline.errors import SourceError
from retinad.pipeline.frames import Size
from retinad.pipeline.model.checkpoint import blank_model
from retinad.pipeline.sources.registry import parse_source

from ..config.load import ServiceConfig

USUAL_SIZE = (640, 480)
"""What a camera's pictures are taken to be where nothing says their size: 4:3."""

_ADVICE = (
    "no camera was opened: `retinad cameras` finds out sizes, --source-size WIDTHxHEIGHT puts one in place of 640x480"
)


@dataclass(frozen=True, slots=True)
class _Share:
    # A camera's: bytes of its stream; frames that run together, and what each computes with; the lines that say so.
    taken: int
    frames: int
    frame_bytes: int
    model_size: Size
    text: str


def memory_report(config: ServiceConfig, size: Size | None, there: int) -> str:
    """Lines for people: for what it holds, the weights, each camera, a forward, and the sum beside what is there.

    Args:
        config: what would run.
        size: width and height of every camera's pictures, or None for what the config says of each, else 4:3.
        there: bytes of memory that the device has; see `device_bytes`.

    Raises:
        ValueError: pictures of this size cannot be fitted to the model.
    """
    model = config.model
    weights = list(blank_model(model).state_dict().values())
    weights_bytes = sum(value.nbytes for value in weights)
    numbers = sum(value.numel() for value in weights) / 1e6
    mixers = ", ".join(f"{model.running_mixers.count(name)} {name}" for name in dict.fromkeys(model.running_mixers))
    shares = [_share(model, camera, size or _known_size(camera)) for camera in config.cameras]
    frames, forward_bytes = _largest_forward(shares, model.max_batch)
    lasting = weights_bytes + sum(share.taken for share in shares)
    return "\n".join(
        [
            _computed_for(model),
            f"weights: {gib(weights_bytes)} for {numbers:.1f} million numbers; global blocks that run: {mixers or 0}",
            *(share.text for share in shares),
            *([] if size or all(map(_known_size, config.cameras)) else [_ADVICE]),
            f"the largest forward: about {gib(forward_bytes)} for {_counted(frames)}",
            f"together: {gib(lasting + forward_bytes)}, which {_verdict(model, lasting, forward_bytes, there)}",
        ]
    )


def device_bytes(device: str) -> int:
    """Bytes of memory that a device has, free or not: a GPU's own; for the CPU, the machine's."""
    if device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return torch.cuda.get_device_properties(device).total_memory


def _computed_for(model: ModelConfig) -> str:
    line = f"for {model.device} in {model.dtype} (model.device, model.dtype)"
    if (model.device, model.dtype) != ("cpu", "float32"):
        return line
    return f"{line}; a GPU's default is bfloat16, which RETINAD_MODEL__DTYPE=bfloat16 shows"


def _largest_forward(shares: Sequence[_Share], max_batch: int) -> tuple[int, int]:
    # Frames and bytes. As `forward.batches` makes them: of one size, `max_batch` at most, no camera's run split.
    sizes = {share.model_size for share in shares}
    forwards = []
    for group in ([share for share in shares if share.model_size == size] for size in sizes):
        runs = [share.frames for share in group]
        frames = max(*runs, min(max_batch, sum(runs)))
        forwards.append((frames, frames * group[0].frame_bytes))
    return max(forwards, key=lambda forward: forward[1])


def _verdict(model: ModelConfig, lasting: int, forward_bytes: int, there: int) -> str:
    if model.device == "cpu":
        fits = lasting + forward_bytes <= there
        return f"{'fits' if fits else 'is MORE than'} the {gib(there)} of this machine"
    room = there - there // HEADROOM
    fits = lasting <= room and lasting + forward_bytes <= there
    return f"{'fits' if fits else 'does NOT fit'} the {gib(there)} of {model.device}: {gib(room)} are for all but steps"


def tokens_of_a_frame(model: ModelConfig, size: Size = USUAL_SIZE, resize: ResizeMode = ResizeMode.CROP) -> int:
    """P of pictures of this size."""
    return _tokens(model, resize_geometry(size, resize, model.image_width, model.network.patch_size)).tokens


def _share(model: ModelConfig, camera: CameraConfig, known: Size | None) -> _Share:
    geometry = resize_geometry(known or USUAL_SIZE, camera.resize, model.image_width, model.network.patch_size)
    tokens, shape = _tokens(model, geometry), pool_shape(model)
    layout = tokens.layout(camera.stream)
    width, height = geometry.model_size
    pictures = camera.stream.scale_frames * 3 * width * height if camera.stream.epoch_frames else 0
    taken = shape.bytes_of(layout) + pictures
    assumed = "" if known else ", assumed"
    lines = [
        f"{camera.name}: {gib(taken)}",
        f"    pictures of {'{}x{}'.format(*geometry.source_size)}{assumed}, {width}x{height} in the model",
        f"    memory: {shape.describe(layout) if model.running_mixers else 'none, with no global block that runs'}",
    ]
    if pictures:
        lines.append(f"    pictures for the next epoch: {gib(pictures)}")
    frame_bytes = step_bytes(model, tokens)
    run = camera.frames_per_step
    lines.append(f"    a step computes with about {gib(run * frame_bytes)} for {_counted(run)}")
    frames = max(run, camera.stream.scale_frames)
    return _Share(taken, frames, frame_bytes, geometry.model_size, "\n".join(lines))


def _counted(frames: int) -> str:
    return f"{frames} frame{'s' * (frames > 1)}"


def _tokens(model: ModelConfig, geometry: ResizeGeometry) -> TokenShape:
    return TokenShape.of(model.network, geometry.grid)


def _known_size(camera: CameraConfig) -> Size | None:
    # What the config says of its pictures, without opening it.
    if camera.size is not None:
        return camera.size
    try:
        return parse_source(camera.source).frame_size
    except SourceError:
        return None
