"""How the network runs: what the config names, or the fastest that can."""

import importlib.util
from dataclasses import dataclass

from .cache.pool import Pool
from .cache.ranged import RangedBackend
from .cache.step import Backend
from .captured import FusedSteps
from .config import ModelConfig
from .errors import ModelError
from .model.aggregator import Aggregator
from .model.checkpoint import Network
from .model.fused import FusedAggregator


@dataclass(frozen=True, slots=True, eq=False)
class Execution:
    """How the network runs.

    Attributes:
        name: `plain`, `fused` or `captured`.
        steps: runs it; None where it is plain.
    """

    name: str
    steps: FusedSteps | None


def choose_execution(config: ModelConfig, model: Network, pool: Pool, backend: Backend) -> Execution:
    """The execution of a loaded model.

    Raises:
        ModelError: what the config names cannot run with this model, attention or device.
    """
    reason = _obstacle(config, model, backend)
    if config.execution == "plain" or (config.execution == "auto" and reason is not None):
        if config.memory_dtype != "auto":
            raise ModelError(f"memory_dtype {config.memory_dtype!r} needs fused execution: {reason or 'it is plain'}")
        return Execution("plain", None)
    if reason is not None or not isinstance(model, Aggregator):
        raise ModelError(f"execution {config.execution!r} is not possible: {reason}")
    capture = config.execution != "fused"
    steps = FusedSteps(FusedAggregator(model), pool, config.output, capture=capture)
    return Execution("captured" if capture else "fused", steps)


def _obstacle(config: ModelConfig, model: Network, backend: Backend) -> str | None:
    # Why fused kernels, or the graphs that are asked for, cannot run; None if they can.
    if not isinstance(model, Aggregator):
        return "a network of depth 0 has nothing to fuse"
    if config.attention_layers and not isinstance(backend, RangedBackend):
        return "it needs attention = 'triton'"
    on_cuda = config.device.startswith("cuda")
    if config.dtype == "float32":
        return "it needs dtype = 'bfloat16' or 'float16'"
    if not on_cuda and config.execution != "fused":
        return f"CUDA graphs need a CUDA device, not {config.device}"
    if on_cuda and importlib.util.find_spec("triton") is None:
        return "triton is not installed: install retinad[gpu]"
    return None
