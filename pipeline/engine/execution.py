"""Chooses how the network runs: as configured, or in the fastest possible way."""

from dataclasses import dataclass

from ..cache.attention_backend import AttentionBackend
from ..cache.backends.triton import TritonBackend
from ..cache.kv_pool import KVCachePool
from ..compatibility import capability_conflicts, execution_conflicts, fusing_obstacle, refuse
from ..config import ModelConfig
from ..model.aggregator import Aggregator
from ..model.network import Network
from ..model.placement import device_capability
from .cuda_graphs import CudaGraphRunner
from .fused_model import FusedAggregator
from .outputs import OutputHeads


@dataclass(frozen=True, slots=True, eq=False)
class Execution:
    """How the network runs.

    Attributes:
        name: `plain`, `fused` or `captured`.
        graphs: runs the network with fused kernels; None for plain execution.
    """

    name: str
    graphs: CudaGraphRunner | None


def choose_execution(
    config: ModelConfig,
    model: Network,
    heads: OutputHeads,
    pool: KVCachePool,
    pose_pool: KVCachePool,
    backend: AttentionBackend,
) -> Execution:
    """Choose the execution of a loaded model.

    Raises:
        ModelError: the configured execution is impossible with this model, attention backend or device.
    """
    obstacle = fusing_obstacle(config, triton=isinstance(backend, TritonBackend))
    refuse(execution_conflicts(config, obstacle))
    if config.device.startswith("cuda") and config.memory_dtype != "auto":
        refuse(capability_conflicts(config, device_capability(config.device)))
    if config.execution == "plain" or obstacle is not None:
        return Execution("plain", None)
    assert isinstance(model, Aggregator), "a network of depth 0 has nothing to fuse"
    capture = config.execution != "fused"
    graphs = CudaGraphRunner(FusedAggregator(model), pool, pose_pool, heads, capture=capture)
    return Execution("captured" if capture else "fused", graphs)
