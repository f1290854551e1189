"""CUDA graphs replaced by calls on the CPU, for tests of what surrounds them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from retinad.pipeline.cache.kv_pool import KVCachePool
from retinad.pipeline.cache.pose_memory import PooledPoses, PoseTables
from retinad.pipeline.cache.step_tables import StepTables
from retinad.pipeline.engine.cuda_graphs import CudaGraphRunner, Kind, _CapturedMemory, _Graph
from retinad.pipeline.engine.fused_model import FusedAggregator
from retinad.pipeline.engine.host_copy import DeviceBuffer
from retinad.pipeline.engine.outputs import OutputHeads
from retinad.pipeline.engine.token_shape import TokenShape


class Replay:
    """Replaces a CUDA graph: everything it reads must be where it was at the capture."""

    def __init__(
        self, steps: "ReplayedOnCpu", kind: Kind, images: Tensor, tables: StepTables, poses: PoseTables | None
    ) -> None:
        self._steps, self._kind, self._images, self._tables = steps, kind, images, tables
        self._memory = _CapturedMemory(steps._pool, tables, kind[0].tokens)
        self._poses = None if poses is None else PooledPoses(steps._pose_pool, poses)
        self._places = addresses(steps._pool)
        self.output = self._run()

    def _run(self) -> tuple[DeviceBuffer, ...]:
        shape, wanted, _ = self._kind
        return self._steps._run(self._images, self._tables, self._memory, shape, wanted, self._poses)

    def replay(self) -> None:
        assert addresses(self._steps._pool) == self._places
        self._steps.replays += 1
        for kept, buffer in zip(self.output, self._run(), strict=True):
            kept.numbers.copy_(buffer.numbers)


class ReplayedOnCpu(CudaGraphRunner):
    """Captures on the CPU; the next captures raise `errors`, the last error first."""

    def __init__(self, fused: FusedAggregator, pool: KVCachePool, pose_pool: KVCachePool, heads: OutputHeads) -> None:
        super().__init__(fused, pool, pose_pool, heads, capture=True)
        self.replays = 0
        self.captures: list[TokenShape] = []
        self.errors: list[Exception] = []

    def run(self, *args: Any) -> tuple[DeviceBuffer, ...]:
        # Copied, as from a device: the next replay writes to the same buffers.
        return tuple(DeviceBuffer.of(buffer.numbers.clone()) for buffer in super().run(*args))

    def _captured(self, kind: Kind, images: Sequence[Tensor], poses: PoseTables | None) -> _Graph:
        shape = kind[0]
        self.captures.append(shape)
        if self.errors:
            raise self.errors.pop()
        stacked, tables = torch.stack(list(images)), StepTables.empty(len(images), torch.device("cpu"))
        tables.slots.fill_(-shape.tokens)  # a capture runs nothing: nothing is written
        tables.rows.fill_(-1)
        tables.written.fill_(-1)
        graph = Replay(self, kind, stacked, tables, poses)
        return _Graph(graph, (), stacked, tables, poses, graph.output)  # type: ignore[arg-type]


def addresses(pool: KVCachePool) -> list[int]:
    layers = [pool.layer(index) for index in range(pool.shape.layers)]
    states = [tensor for index in range(pool.shape.states.layers) for tensor in pool.states.layer(index).tensors]
    return [tensor.data_ptr() for tensor in (*layers, *states)]
