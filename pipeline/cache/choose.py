"""Which attention backend runs: the one that the config names, or the fastest that can."""

from dataclasses import dataclass

from ..config import ModelConfig
from ..errors import DeviceError, ModelError
from .dense import DenseBackend
from .flashinfer import open_flashinfer
from .paged import PagedBackend
from .pool import PoolShape
from .step import Backend


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A backend.

    Attributes:
        name: what runs: `dense`, `paged`, `flashinfer fa2` or `flashinfer fa3`.
        reason: why `auto` did not take FlashInfer; None where it did, or where the config named a backend.
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
    match config.attention:
        case "dense":
            return Choice("dense", None, DenseBackend())
        case "paged":
            return Choice("paged", None, PagedBackend())
        case "flashinfer":
            return _flashinfer(config, shape)
    if not shape.layers:
        return Choice("dense", "no layer has a memory", DenseBackend())
    try:
        return _flashinfer(config, shape)
    except DeviceError:
        raise
    except ModelError as error:
        return Choice("dense", str(error), DenseBackend())


def _flashinfer(config: ModelConfig, shape: PoolShape) -> Choice:
    backend = open_flashinfer(shape, config.flashinfer_kernels)
    return Choice(f"flashinfer {backend.kernels}", None, backend)
