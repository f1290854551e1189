"""HorizonStream's golden files: weights, images and streams, by the rules with which the outputs were generated."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from retinad.pipeline.cache.backends.dense import DenseBackend
from retinad.pipeline.cache.kv_pool import KVCachePool, PoolShape
from retinad.pipeline.cache.recurrent_pool import StateShape
from retinad.pipeline.cache.step import Step
from retinad.pipeline.cache.stream_cache import StreamState
from retinad.pipeline.cache.window import CacheLayout, FramePlan, StreamWindow
from retinad.pipeline.config import CameraHeadConfig, DenseHeadConfig, HorizonConfig, NetworkConfig, StreamConfig
from retinad.pipeline.frames import OutputKind
from retinad.pipeline.model.delta_state import streaming_config
from retinad.pipeline.model.dense_head import depth_of
from retinad.pipeline.model.horizon_heads import in_metres, metric_scale, window_poses
from retinad.pipeline.model.horizon_keys import HORIZON_KEYS
from retinad.pipeline.model.horizon_stream import HorizonStream
from retinad.pipeline.model.network import FrameNumbers, LayerOutput

from .golden import DATA, weight

TOLERANCE = 2e-6
"""Relative to the largest magnitude. A second implementation agrees to 1e-6."""

CAMERA_TOLERANCE = 3e-6
"""The same for camera rows, whose rounds amplify rounding: a second implementation agrees to 1.2e-6."""


@dataclass(frozen=True)
class Case:
    """One golden file: its name; the seed, number and size of its images; its network, window, and frames per step."""

    name: str
    seed: int
    frames: int
    height: int
    width: int
    network: NetworkConfig
    window: int
    per_step: int = 1

    @property
    def cuts(self) -> tuple[int, ...]:
        """The first frame of each step, and the number of frames."""
        return (0, *range(min(self.window, self.frames), self.frames, self.per_step), self.frames)


def network(period: int, **changes: Any) -> NetworkConfig:
    small = NetworkConfig(
        channels=192,
        heads=3,
        depth=4,
        patch_embed="conv",
        register_tokens=0,
        rope3d=False,
        camera_head=CameraHeadConfig(heads=3),
        dense_head=DenseHeadConfig(layers=(0, 1, 2, 3), features=32, channels=(16, 32, 48, 48)),
        horizon=HorizonConfig(pose_tokens=4, memory_layers=(1, 3), period=period, scale_hidden=(32, 16)),
    )
    return replace(small, **changes)


def cases() -> tuple[Case, ...]:
    dinov2 = HorizonConfig(pose_tokens=8, memory_layers=(0, 2), period=21, scale_hidden=(32, 16))
    heads = CameraHeadConfig(heads=3)
    backbone = network(21, channels=384, heads=6, patch_embed="dinov2_vits14_reg", horizon=dinov2, camera_head=heads)
    return (
        Case("horizon_stream", 31, 14, 42, 56, network(5), 3),
        Case("horizon_chunks", 32, 14, 56, 42, network(4), 3, per_step=4),
        Case("horizon_short", 35, 2, 42, 42, network(5), 3),
        Case("horizon_dinov2_small", 33, 7, 56, 70, backbone, 2),
    )


def horizon_weight(key: str, shape: tuple[int, ...]) -> Tensor:
    """The value of the weight with this key in the released layout."""
    if key.endswith("dt_bias"):  # else the memory would not last a frame
        drawn = np.random.Generator(np.random.PCG64(zlib.crc32(key.encode()))).standard_normal(shape)
        return torch.from_numpy((drawn - 4).astype(np.float32))
    return weight(key, shape)


def horizon(config: NetworkConfig) -> HorizonStream:
    """The network with its heads, and with the golden weights."""
    with torch.device("meta"):
        model = HorizonStream(config, torch.float32)
        model.add_heads((OutputKind.POSE, OutputKind.DEPTH))
    weights = {name: horizon_weight(HORIZON_KEYS.key(name), tuple(v.shape)) for name, v in model.state_dict().items()}
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(False)


def fill_part(module: nn.Module, prefix: str, renamed: tuple[str, str] = ("", "")) -> None:
    """Fill a module with the golden weights whose names begin with `prefix`."""
    names = {name: prefix + name.replace(*renamed, 1) for name in module.state_dict()}
    module.load_state_dict({n: horizon_weight(k, tuple(module.state_dict()[n].shape)) for n, k in names.items()})


def new_pool(model: HorizonStream) -> KVCachePool:
    config, cpu = model.network, torch.device("cpu")
    delta = streaming_config(config.channels, config.heads)
    states = StateShape(config.recurrent_states(config.depth), delta, torch.float32, cpu)
    return KVCachePool(
        PoolShape(config.kv_caches(config.depth), config.heads, model.head_dim, torch.float32, cpu, states)
    )


def new_state(
    model: HorizonStream, window: int, height: int, width: int, pool: KVCachePool | None = None, per_step: int = 1
) -> StreamState:
    config = model.network
    tokens = (height // config.patch_size) * (width // config.patch_size) + config.special_tokens
    stream = StreamConfig(scale_frames=window, window=window, history_frames=0)
    layout = replace(CacheLayout.window_alone(stream, tokens, config.slot_tokens), frames_per_step=per_step)
    return StreamState.allocate(pool or new_pool(model), StreamWindow(layout))


def numbers_of(frames: Sequence[FramePlan]) -> FrameNumbers:
    count = len(frames)
    return FrameNumbers(
        times=tuple(frame.number for frame in frames),
        first=(False,) * count,
        scale=(False,) * count,
        later=tuple(frame.later for frame in frames),
        windows=tuple(len(frame.window) for frame in frames),
    )


def run_step(
    model: HorizonStream,
    states: Sequence[StreamState],
    parts: Sequence[Tensor],
    later: tuple[int | None, ...] | None = None,
) -> tuple[LayerOutput, ...]:
    """One step: `parts[i]` [f, 3, h, w] go into `states[i]`; `later` overrides the positions in time."""
    with Step(states, [len(part) for part in parts], DenseBackend()) as step:
        numbers = numbers_of([frame for plan in step.plans for frame in plan.frames])
        numbers = numbers if later is None else replace(numbers, later=later)
        outputs = model(torch.cat(list(parts)), numbers, step, tuple(range(model.network.depth)))
        step.commit()
    return tuple(outputs)


@dataclass(frozen=True, eq=False)
class Outputs:
    """Everything that a golden file has, of F frames."""

    features: Tensor
    pose_features: Tensor
    camera_rows: Tensor
    metric_scale: Tensor
    depth: Tensor
    depth_conf: Tensor


def outputs_of(model: HorizonStream, layers: Sequence[LayerOutput], size: tuple[int, int], *, joint: bool) -> Outputs:
    """What the heads make of a step's layers. `joint`: the step has one metric scale, that of its mean token."""
    height, width = size
    deepest, grid = layers[-1], (height // 14, width // 14)
    assert deepest.slots is not None
    assert model.camera_head is not None
    assert model.depth_head is not None
    assert model.scale_head is not None
    features = torch.stack([torch.cat(layer.parts, dim=-1) for layer in layers], dim=1)  # [F, layers, P, 2C]
    if joint:
        scale = model.scale_head.scale(features[:, -1, 0].mean(0, keepdim=True)).expand(len(features))
    else:
        scale = metric_scale(model.scale_head, deepest)
    poses = in_metres(window_poses(model.camera_head, deepest.slots), scale)
    values, confidence = model.depth_head([features[:, index, 1:] for index in range(4)], grid, (width, height))
    depth = depth_of(values) * scale[:, None, None]
    return Outputs(features, deepest.slots.tokens, poses, scale, depth, confidence)


def agree(found: Tensor, expected: npt.NDArray[np.float32], tolerance: float = TOLERANCE) -> None:
    assert tuple(found.shape) == expected.shape
    assert np.abs(found.numpy() - expected).max() / np.abs(expected).max() <= tolerance


def golden(name: str) -> Any:
    return np.load(DATA / f"{name}.npz")
