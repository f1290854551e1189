"""Admission control: the configured limit on the number of streams, and the device memory for their KV caches."""

import torch

from ..cache.kv_pool import KVCachePool, PoolShape, gib
from ..cache.recurrent_pool import StateShape
from ..cache.window import CacheLayout
from ..config import ModelConfig, StreamConfig
from ..errors import AdmissionError
from ..model.delta_state import streaming_config
from ..model.devices import torch_dtype
from .token_shape import TokenShape

HEADROOM = 10
"""1 / HEADROOM of a GPU's memory is kept free for activations. Eight frames of the released model need up to 1 GiB."""


def pool_shape(config: ModelConfig) -> PoolShape:
    """The shape of a model's KV cache pool.

    Raises:
        ValueError: the network's channels are not a multiple of its heads.
    """
    network, dtype, device = config.network, torch_dtype(config.dtype), torch.device(config.device)
    delta = streaming_config(network.channels, network.heads)
    states = StateShape(config.delta_layers, delta, dtype, device)
    tokens_dtype = dtype if config.memory_dtype == "auto" else torch.float8_e4m3fn
    return PoolShape(config.attention_layers, network.heads, delta.head_dim, tokens_dtype, device, states)


def pose_pool_shape(config: ModelConfig) -> PoolShape:
    """The shape of the pool of the camera head's keys and values: always float32."""
    head, channels = config.network.camera_head, 2 * config.network.channels
    layers = head.rounds * head.blocks
    return PoolShape(layers, head.heads, channels // head.heads, torch.float32, torch.device(config.device))


def memory_limit(device: torch.device) -> int | None:
    """Device memory in bytes that the streams' caches may use once the weights are loaded; None (no limit) on a CPU."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return max(0, free - total // HEADROOM)


def check_admission(camera: str, stream: StreamConfig, opened: int, config: ModelConfig, pool: KVCachePool) -> None:
    """Admit one more stream, or refuse it before its first frame.

    Args:
        camera: name of the camera whose stream it is.
        stream: the stream's settings.
        opened: number of streams already open.
        config: the model.
        pool: storage of the streams' caches.

    Raises:
        AdmissionError: `max_streams` streams are already open.
    """
    if opened >= config.max_streams:
        raise AdmissionError(
            f"camera {camera!r} exceeds max_streams = {config.max_streams}, as {opened} streams are open: raise it or "
            f"disable a camera. The caches of the open streams use {gib(pool.nbytes)} of memory, and this "
            f"stream's would use up to {pool.shape.describe(_largest(stream, config))}"
        )


def _largest(stream: StreamConfig, config: ModelConfig) -> CacheLayout:
    # The layout for a square image, the largest one: no image is higher than it is wide.
    side = config.image_width // config.network.patch_size
    return TokenShape.of(config.network, (side, side)).layout(stream)
