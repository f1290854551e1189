"""Which attention backend runs: the one that the config names, or the fastest that can."""

from dataclasses import dataclass

from ...compatibility import attention_conflicts, kernel_obstacle, refuse
from ...config import ModelConfig
from ..kv_pool import PoolShape
from ..step import Backend
from .dense import DenseBackend
from .flashinfer import open_flashinfer
from .paged import PagedBackend
from .triton import TritonBackend, check_device, device_obstacle


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A backend.

    Attributes:
        name: what runs: `triton`, `dense`, `paged`, `flashinfer fa2` or `flashinfer fa3`.
        reason: why `auto` took it; None where the config named a backend.
        backend: the backend.
    """

    name: str
    reason: str | None
    backend: Backend


def choose_backend(config: ModelConfig, shape: PoolShape) -> Choice:
    """The backend that a model runs with, ready to run.

    Raises:
        ModelError: the backend that the config names cannot run here.
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
        return Choice("dense", "no layer attends to a memory", DenseBackend())
    obstacle = kernel_obstacle("triton", config) or device_obstacle(shape.device)
    if obstacle is not None:
        return Choice("dense", obstacle, DenseBackend())
    return Choice("triton", "the fastest", TritonBackend())
