"""How many streams are let in: a number that the config gives, and what the device's memory holds."""

import torch

from ..cache.kv_pool import KVCachePool, PoolShape, gib
from ..cache.recurrent_pool import StateShape
from ..cache.window import CacheLayout
from ..config import ModelConfig, StreamConfig
from ..errors import AdmissionError
from ..model.delta_state import streaming_config
from ..model.devices import torch_dtype
from .outputs import TokenShape

HEADROOM = 10
"""A tenth of a GPU's memory is left for what a step computes with: at most 1 GiB for 8 frames of the released model."""


def pool_shape(config: ModelConfig) -> PoolShape:
    """What a stream of a model takes in its pool.

    Raises:
        ValueError: the network's channels are no multiple of its heads.
    """
    network, dtype, device = config.network, torch_dtype(config.dtype), torch.device(config.device)
    delta = streaming_config(network.channels, network.heads)
    states = StateShape(config.delta_layers, delta, dtype, device)
    tokens_dtype = dtype if config.memory_dtype == "auto" else torch.float8_e4m3fn
    return PoolShape(config.attention_layers, network.heads, delta.head_dim, tokens_dtype, device, states)


def memory_limit(device: torch.device) -> int | None:
    """Bytes that the streams' memories may take of a device whose weights are loaded; None on a CPU: what it gives."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return max(0, free - total // HEADROOM)


def check_admission(camera: str, stream: StreamConfig, opened: int, config: ModelConfig, pool: KVCachePool) -> None:
    """Let one stream more in, or refuse it before its first frame.

    Args:
        camera: whose stream it is.
        stream: what it remembers.
        opened: streams that are open already.
        config: the model.
        pool: where they are stored.

    Raises:
        AdmissionError: `max_streams` are open.
    """
    if opened >= config.max_streams:
        raise AdmissionError(
            f"camera {camera!r} is one too many: max_streams = {config.max_streams} are open and hold "
            f"{gib(pool.nbytes)}; it would take up to {pool.shape.describe(_largest(stream, config))}"
        )


def _largest(stream: StreamConfig, config: ModelConfig) -> CacheLayout:
    # The highest picture there is, a square one.
    side = config.image_width // config.network.patch_size
    return TokenShape.of(config.network, (side, side)).layout(stream)
