"""Which attention backend runs: the one that the config names, or the fastest that can."""

from dataclasses import dataclass

import torch

from ..config import ModelConfig
from ..errors import DeviceError, ModelError
from .dense import DenseBackend
from .flashinfer import FlashInferBackend, open_flashinfer
from .mixed import MixedBackend
from .paged import PagedBackend
from .pool import PoolShape
from .step import Backend


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A backend.

    Attributes:
        name: what runs: `dense`, `paged`, `flashinfer fa2`, `flashinfer fa3`, or what `auto` makes of the latter two.
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
    match config.attention:
        case "dense":
            return Choice("dense", None, DenseBackend())
        case "paged":
            return Choice("paged", None, PagedBackend())
        case "flashinfer":
            named = open_flashinfer(shape, config.flashinfer_kernels)
            return Choice(f"flashinfer {named.kernels}", None, named)
    if not shape.layers:
        return Choice("dense", "no layer has a memory", DenseBackend())
    try:
        return _mixed(open_flashinfer(shape, config.flashinfer_kernels), shape.device)
    except DeviceError:
        raise
    except ModelError as error:
        return Choice("dense", str(error), DenseBackend())


def _mixed(flashinfer: FlashInferBackend, device: torch.device) -> Choice:
    backend = MixedBackend(flashinfer, torch.cuda.get_device_properties(device).multi_processor_count)
    reason = "several streams of small pictures are faster together, others one by one"
    return Choice(f"flashinfer {flashinfer.kernels} or dense", reason, backend)
