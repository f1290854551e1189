"""How the network runs: what the config names, or the fastest that can."""

from dataclasses import dataclass

from ..cache.backends.triton import RangedBackend
from ..cache.kv_pool import Pool
from ..cache.step import Backend
from ..compatibility import execution_conflicts, fusing_obstacle, refuse
from ..config import ModelConfig
from ..model.aggregator import Aggregator
from ..model.checkpoint import Network
from .cuda_graphs import FusedSteps
from .fused_model import FusedAggregator


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
    obstacle = fusing_obstacle(config, triton=isinstance(backend, RangedBackend))
    refuse(execution_conflicts(config, obstacle))
    if config.execution == "plain" or obstacle is not None:
        return Execution("plain", None)
    assert isinstance(model, Aggregator), "a network of depth 0 has nothing to fuse"
    capture = config.execution != "fused"
    steps = FusedSteps(FusedAggregator(model), pool, config.output, capture=capture)
    return Execution("captured" if capture else "fused", steps)
