"""How the network runs: what the config names, or the fastest that can."""

from dataclasses import dataclass

from ..cache.attention_backend import AttentionBackend
from ..cache.backends.triton import TritonBackend
from ..cache.kv_pool import KVCachePool
from ..compatibility import execution_conflicts, fusing_obstacle, refuse
from ..config import ModelConfig
from ..model.aggregator import Aggregator
from ..model.network import Network
from .cuda_graphs import CudaGraphRunner
from .fused_model import FusedAggregator


@dataclass(frozen=True, slots=True, eq=False)
class Execution:
    """How the network runs.

    Attributes:
        name: `plain`, `fused` or `captured`.
        steps: runs it; None where it is plain.
    """

    name: str
    steps: CudaGraphRunner | None


def choose_execution(config: ModelConfig, model: Network, pool: KVCachePool, backend: AttentionBackend) -> Execution:
    """The execution of a loaded model.

    Raises:
        ModelError: what the config names cannot run with this model, attention or device.
    """
    obstacle = fusing_obstacle(config, triton=isinstance(backend, TritonBackend))
    refuse(execution_conflicts(config, obstacle))
    if config.execution == "plain" or obstacle is not None:
        return Execution("plain", None)
    assert isinstance(model, Aggregator), "a network of depth 0 has nothing to fuse"
    capture = config.execution != "fused"
    steps = CudaGraphRunner(FusedAggregator(model), pool, config.output, capture=capture)
    return Execution("captured" if capture else "fused", steps)
