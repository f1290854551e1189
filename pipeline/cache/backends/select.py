"""Selects the attention backend: the configured one, or the fastest one that can run."""

from dataclasses import dataclass

from ...compatibility import attention_conflicts, kernel_obstacle, refuse
from ...config import ModelConfig
from ..attention_backend import AttentionBackend
from ..kv_pool import PoolShape
from .dense import DenseBackend
from .flashinfer import open_flashinfer
from .paged import PagedBackend
from .triton import TritonBackend, check_device, device_obstacle


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The selected backend.

    Attributes:
        name: `triton`, `dense`, `paged`, `flashinfer fa2` or `flashinfer fa3`.
        reason: why `auto` selected it; None if the config names a backend.
        backend: the backend.
    """

    name: str
    reason: str | None
    backend: AttentionBackend


def choose_backend(config: ModelConfig, shape: PoolShape) -> Choice:
    """Select and prepare the backend of a model.

    Raises:
        ModelError: the configured backend cannot run on this machine or with this model.
        DeviceError: the device failed.
    """
    refuse(attention_conflicts(config))
    match config.attention:
        case "dense":
            return Choice("dense", None, DenseBackend())
        case "paged":
            return Choice("paged", None, PagedBackend())
        case "flashinfer":
            named = open_flashinfer(shape, config.flashinfer_kernels)
            return Choice(f"flashinfer {named.kernels}", None, named)
        case "triton":
            check_device(shape.device)
            return Choice("triton", None, TritonBackend())
    if not shape.layers:
        return Choice("dense", "no layer has a KV cache", DenseBackend())
    obstacle = kernel_obstacle("triton", config) or device_obstacle(shape.device)
    if obstacle is not None:
        return Choice("dense", obstacle, DenseBackend())
    return Choice("triton", "the fastest", TritonBackend())
