"""`retinad check --memory`: formats the memory estimate of a config as text for people."""

from collections.abc import Iterator

from retinad.pipeline.cache.kv_pool import gib
from retinad.pipeline.config import CameraConfig, ModelConfig
from retinad.pipeline.engine.memory_estimate import (
    ASSUMED_SIZE,
    CameraEstimate,
    MemoryEstimate,
    estimate_memory,
    lasting_limit,
)
from retinad.pipeline.errors import SourceError
from retinad.pipeline.frames import Size
from retinad.pipeline.sources.registry import parse_source

from ..config.service_config import ServiceConfig


def memory_report(config: ServiceConfig, size: Size | None, device_bytes: int, *, card: bool = False) -> str:
    """The estimate as text: memory for the weights, each camera and the largest forward pass, and the total.

    The total is compared with the memory of the device.

    Args:
        config: the config.
        size: width and height of every camera's frames. If None, each camera's size is taken from the config, or else a
            4:3 size is assumed.
        device_bytes: size of the device's memory in bytes.
        card: whether the device is a card that need not be in this machine.

    Raises:
        ValueError: frames of this size cannot be resized to the model.
    """
    sizes = [_size_of(camera, size) for camera in config.cameras]
    estimate = estimate_memory(config.model, config.cameras, sizes)
    return "\n".join(_lines(config.model, estimate, device_bytes, "the card" if card else config.model.device))


def _lines(model: ModelConfig, estimate: MemoryEstimate, device_bytes: int, device: str) -> Iterator[str]:
    yield _computed_for(model, device)
    mixers = ", ".join(f"{model.running_mixers.count(name)} {name}" for name in dict.fromkeys(model.running_mixers))
    parameters = f"{estimate.parameters / 1e6:.1f} million parameters"
    yield f"weights: {gib(estimate.weights_bytes)}, {parameters}; global blocks that run: {mixers or 0}"
    for camera in estimate.cameras:
        yield from _camera_lines(camera)
    if not all(camera.size_is_known for camera in estimate.cameras):
        yield (
            "no camera was opened: `retinad cameras` finds the sizes, and --source-size WIDTHxHEIGHT sets one instead "
            "of {}x{}".format(*ASSUMED_SIZE)
        )
    yield f"largest forward pass: about {gib(estimate.forward_bytes)} for {_counted(estimate.forward_frames)}"
    yield f"total: {gib(estimate.total_bytes)}, which {_verdict(estimate, device_bytes, device)}"
    if (model.device, model.dtype) == ("cpu", "float32"):
        yield "on a GPU, the default is bfloat16, which takes half as much: `--card SIZE` computes for one"


def _computed_for(model: ModelConfig, device: str) -> str:
    return f"for {device} in {model.dtype} ({'model.device' if device == model.device else '--card'}, model.dtype)"


def _camera_lines(camera: CameraEstimate) -> Iterator[str]:
    source, model = ("{}x{}".format(*size) for size in (camera.source_size, camera.model_size))
    yield f"{camera.name}: {gib(camera.nbytes)}"
    yield f"    frames of {source}{'' if camera.size_is_known else ' (assumed)'}, {model} in the model"
    yield f"    memory: {camera.cache or 'none, since no global block runs'}"
    if camera.pose_bytes:
        yield f"    memory of poses: {gib(camera.pose_bytes)}"
    if camera.epoch_image_bytes:
        yield f"    images for the next epoch: {gib(camera.epoch_image_bytes)}"
    frames = camera.step_frames
    yield f"    a step computes with about {gib(camera.working_bytes(frames))} for {_counted(frames)}"


def _verdict(estimate: MemoryEstimate, device_bytes: int, device: str) -> str:
    if device == "cpu":
        fits = estimate.total_bytes <= device_bytes
        return f"{'fits' if fits else 'is MORE than'} the {gib(device_bytes)} of this machine"
    limit = lasting_limit(device_bytes)
    fits = estimate.lasting_bytes <= limit and estimate.total_bytes <= device_bytes
    verdict = "fits" if fits else "does NOT fit"
    return f"{verdict} the {gib(device_bytes)} of {device} (at most {gib(limit)} without the forward pass)"


def _counted(frames: int) -> str:
    return f"{frames} frame{'s' * (frames > 1)}"


def _size_of(camera: CameraConfig, size: Size | None) -> Size | None:
    # A crop determines the size of the model's input, whatever size the camera sends.
    return size if size and camera.crop is None else _configured_size(camera)


def _configured_size(camera: CameraConfig) -> Size | None:
    # This is found out without opening the source.
    if camera.crop is not None:
        return camera.crop[2:]
    if camera.size is not None:
        return camera.size
    try:
        return parse_source(camera.source).frame_size
    except SourceError:
        return None
