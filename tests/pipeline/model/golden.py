"""The golden files' weights, images and streams, by the rules with which the reference outputs were generated."""

import math
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from retinad.pipeline.cache.attention_backend import AttentionBackend
from retinad.pipeline.cache.backends.dense import DenseBackend
from retinad.pipeline.cache.kv_pool import KVCachePool, PoolShape
from retinad.pipeline.cache.step import Step
from retinad.pipeline.cache.stream_cache import StreamState
from retinad.pipeline.cache.window import CacheLayout, StreamWindow
from retinad.pipeline.config import NetworkConfig, RetentionConfig, StreamConfig
from retinad.pipeline.model.aggregator import Aggregator
from retinad.pipeline.model.network import FrameNumbers, LayerOutput

DATA = Path(__file__).parents[2] / "data" / "golden"
FloatArray = npt.NDArray[np.float64]
TOLERANCE = 2e-6
"""Relative to the largest magnitude. A correct implementation agrees to 3e-7, a wrong LayerNorm eps to 1e-6 to 7e-6."""


@dataclass(frozen=True)
class Case:
    """One golden file: its name; the seed, number and size of its images; its network and its stream's settings."""

    name: str
    seed: int
    frames: int
    height: int
    width: int
    network: NetworkConfig
    stream: StreamConfig


def conv(*, rope3d: bool = True) -> NetworkConfig:
    return NetworkConfig(channels=1024, heads=16, depth=2, patch_embed="conv", rope3d=rope3d)


def dinov2_small() -> NetworkConfig:
    return NetworkConfig(channels=384, heads=6, depth=2, patch_embed="dinov2_vits14_reg", rope3d=False)


def cases() -> tuple[Case, ...]:
    no_special, camera_only = RetentionConfig(cross_frame_special=False), RetentionConfig(camera_only=True)
    return (
        Case("stream_rope3d", 1, 9, 42, 56, conv(), StreamConfig(2, 3)),
        Case("stream_rope2d", 2, 8, 56, 42, conv(rope3d=False), StreamConfig(2, 3)),
        Case("stream_camera_only", 3, 7, 42, 42, conv(), StreamConfig(1, 2, retention=camera_only)),
        Case("stream_no_special", 4, 8, 42, 42, conv(), StreamConfig(2, 2, retention=no_special)),
        Case("stream_keyframes", 5, 11, 42, 56, conv(), StreamConfig(2, 2, keyframe_interval=3)),
        Case("stream_dinov2_small", 6, 6, 56, 70, dinov2_small(), StreamConfig(2, 3)),
    )


def weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """The value of the weight `name`, float32."""
    drawn = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode()))).standard_normal(shape)
    return torch.from_numpy(_scaled(drawn, name.split(".")).astype(np.float32))


def _scaled(drawn: FloatArray, parts: list[str]) -> FloatArray:
    leaf, parent = parts[-1], parts[-2] if len(parts) > 1 else ""
    if leaf == "gamma":
        return 0.3 + 0.1 * drawn
    if "norm" in parent and leaf == "weight":
        return 1 + 0.1 * drawn
    if leaf == "bias":
        return 0.02 * drawn
    if leaf == "weight" and drawn.ndim > 1:
        return drawn / math.sqrt(math.prod(drawn.shape[1:]))
    return 0.5 * drawn


def state_dict(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight(name, tuple(value.shape)) for name, value in model.state_dict().items()}


def aggregator(network: NetworkConfig) -> Aggregator:
    with torch.device("meta"):
        model = Aggregator(network, torch.float32)
    model.load_state_dict(state_dict(model), assign=True)
    return model.requires_grad_(False)


def random_images(seed: int, frames: int, height: int, width: int) -> Tensor:
    """float32 [frames, 3, height, width] in [0, 1)."""
    drawn = np.random.Generator(np.random.PCG64(seed)).random((1, frames, 3, height, width), dtype=np.float32)
    return torch.from_numpy(drawn[0])


def new_pool(model: Aggregator, dtype: torch.dtype = torch.float32) -> KVCachePool:
    network = model.network
    return KVCachePool(PoolShape(network.depth, network.heads, model.head_dim, dtype, torch.device("cpu")))


def new_state(
    model: Aggregator, stream: StreamConfig, height: int, width: int, pool: KVCachePool | None = None
) -> StreamState:
    network = model.network
    tokens = (height // network.patch_size) * (width // network.patch_size) + model.special_tokens
    layout = CacheLayout.of(stream, tokens, model.special_tokens)
    return StreamState.allocate(pool or new_pool(model), StreamWindow(layout))


DENSE = DenseBackend()


def run_step(
    model: Aggregator,
    states: list[StreamState],
    frames: list[Tensor],
    *,
    shift: int = 0,
    backend: AttentionBackend = DENSE,
) -> tuple[LayerOutput, ...]:
    """One step: `frames[i]` [f, 3, h, w] go into `states[i]`; `shift` is added to all times."""
    with Step(states, [len(part) for part in frames], backend) as step:
        layers = tuple(range(model.network.depth))
        outputs: tuple[LayerOutput, ...] = model(torch.cat(frames), _numbers(step, shift), step, layers)
        step.commit()
    return outputs


def _numbers(step: Step, shift: int) -> FrameNumbers:
    counts = [frame.number for plan in step.plans for frame in plan.frames]
    scale_frames = [plan.after.layout.scale_frames for plan in step.plans for _ in plan.frames]
    return FrameNumbers(
        times=tuple(number + shift for number in counts),
        first=tuple(number == 0 for number in counts),
        scale=tuple(number < most for number, most in zip(counts, scale_frames, strict=True)),
    )


def features(outputs: tuple[LayerOutput, ...]) -> Tensor:
    """The outputs in one tensor [F, layers, P, 2C]."""
    return torch.stack([torch.cat(output.parts, dim=-1) for output in outputs], dim=1)


def run_stream(
    model: Aggregator, state: StreamState, images: Tensor, *, shift: int = 0, backend: AttentionBackend = DENSE
) -> Tensor:
    """Run a whole stream like the reference: the scale frames in one step, then one frame per step."""
    first = state.window.layout.scale_frames
    parts = [images[:first], *(images[number : number + 1] for number in range(first, len(images)))]
    return torch.cat([features(run_step(model, [state], [part], shift=shift, backend=backend)) for part in parts])
