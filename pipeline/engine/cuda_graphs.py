"""CUDA graphs: a forward pass is captured once for each image size and number of frames, then replayed.

A step whose streams have one frame each and are past their first step launches the same kernels, however old the
streams are. Images and tables are copied to where the graph reads them, and the outputs are read where the graph writes
them. The first step of a kind runs without a graph, which compiles its kernels and builds its tables. The second one is
captured, and later ones replay the graph. Graphs contain the addresses of the KV cache, so they are captured again when
the pool moves the cache. If the device has no room for a graph, the step runs without one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..cache.kv_pool import KVCachePool
from ..cache.pose_memory import PooledPoses, PoseStep, PoseTables
from ..cache.step import Step
from ..cache.step_tables import StepTables
from ..errors import DeviceError
from ..model.delta_attention import KimiDeltaAttention
from ..model.delta_state import Sequences
from ..model.devices import is_device_failure, is_out_of_memory
from .fused_model import FusedAggregator, Memory
from .host_copy import DeviceBuffer
from .outputs import OutputHeads, Wanted
from .token_shape import TokenShape

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

MOST_GRAPHS = 32
"""Maximum number of graphs kept. Each takes about ten megabytes; the least recently used one is evicted."""

EARNED_RUNS = 64
"""Number of runs without a graph before a kind of step evicts another kind's graph. If this were 1, and
one kind more than there is room for came in turn, every step would capture a graph, which costs more than running the
step without one. The number is chosen, not measured."""

RETRY_RUNS = 1000
"""Number of runs without a graph before the next attempt, after a capture has found no room."""

Kind = tuple[TokenShape, Wanted, int]
"""The kind of a step: its frames' token shape, what is computed for each frame, and the most poses that a frame sees.
Steps of one kind share a graph."""


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    # `held` keeps alive the other tensors that the graph reads. They were made before the capture, and their owners may
    # drop them.
    graph: torch.cuda.CUDAGraph
    held: tuple[object, ...]
    images: Tensor
    tables: StepTables
    poses: PoseTables | None
    output: tuple[DeviceBuffer, ...]

    def replay(
        self, images: Sequence[Tensor], tables: StepTables, poses: PoseTables | None
    ) -> tuple[DeviceBuffer, ...]:
        torch.stack(list(images), out=self.images)
        self.tables.flat.copy_(tables.flat, non_blocking=True)
        if self.poses is not None and poses is not None:
            self.poses.copy_(poses)
        self.graph.replay()
        return self.output


class CudaGraphRunner:
    """Runs the network with fused kernels, as CUDA graphs where possible.

    Args:
        fused: the network.
        pool: storage of the streams' KV caches.
        pose_pool: storage of the camera head's KV caches.
        heads: make the published outputs.
        capture: whether to capture graphs.
    """

    def __init__(
        self,
        fused: FusedAggregator,
        pool: KVCachePool,
        pose_pool: KVCachePool,
        heads: OutputHeads,
        *,
        capture: bool,
    ) -> None:
        self._fused = fused
        self._pool = pool
        self._pose_pool = pose_pool
        self._heads = heads
        self._capture = capture
        self._version = pool.version, pose_pool.version
        # Runs of each kind without a graph. At most a few hundred kinds: the grids times the numbers of frames.
        self._runs: dict[Kind, int] = {}
        self._graphs: dict[Kind, _Graph] = {}
        self._host: dict[int, StepTables] = {}
        self._scratch: _POOL_HANDLE | None = None
        self._stream: torch.cuda.Stream | None = None

    @property
    def graphs(self) -> tuple[torch.cuda.CUDAGraph, ...]:
        """The captured graphs, least recently used first."""
        return tuple(kept.graph for kept in self._graphs.values())

    def run(
        self,
        images: Sequence[Tensor],
        step: Step,
        shape: TokenShape,
        wanted: Wanted,
        poses: PoseStep | None,
    ) -> tuple[DeviceBuffer, ...]:
        """Run one forward pass.

        Args:
            images: float32 [3, h, w] each, RGB in [0, 1].
            step: the step, which must still be open.
            shape: the token shape of the frames.
            wanted: what to compute for each frame.
            poses: the step of the pose memories, or None if no frame wants a pose.

        Returns:
            the buffers of `OutputHeads.gather`, valid until the next call.

        Raises:
            DeviceError: the device failed during a capture.
        """
        try:
            tables = self._filled(step, len(images))
            if self._capture and step.single:
                return self._run_single(images, tables, shape, wanted, poses)
            memory = None if poses is None else poses.memory()
            device_tables = tables.to(self._pool.shape.device)
            return self._run(torch.stack(list(images)), device_tables, step, shape, wanted, memory)
        except BaseException:
            self._host.clear()  # nothing waits for the failed step, whose copy to the device may still read the tables
            raise

    def _filled(self, step: Step, frames: int) -> StepTables:
        # Each step waits for its outputs, so the copy of the previous step's tables is done by now.
        tables = self._host.get(frames)
        if tables is None:
            pinned = self._pool.shape.device.type == "cuda"
            tables = self._host[frames] = StepTables.empty(frames, torch.device("cpu"), pinned=pinned)
        step.fill(tables)
        return tables

    def _run(
        self,
        images: Tensor,
        tables: StepTables,
        memory: Memory,
        shape: TokenShape,
        wanted: Wanted,
        poses: PooledPoses | None,
    ) -> tuple[DeviceBuffer, ...]:
        layers = self._fused(images, tables, memory, self._heads.layers)
        return self._heads.gather(layers, shape, wanted, poses)

    def _run_single(
        self,
        images: Sequence[Tensor],
        tables: StepTables,
        shape: TokenShape,
        wanted: Wanted,
        poses: PoseStep | None,
    ) -> tuple[DeviceBuffer, ...]:
        device = self._pool.shape.device
        width = 0 if poses is None else poses.capacity
        kind = shape, wanted, width
        pose_tables = None if poses is None else poses.tables(width)
        if pose_tables is not None and device.type == "cuda":
            pose_tables = pose_tables.pinned()
        graph = self._graph(kind, images, pose_tables)
        if graph is not None:
            return graph.replay(images, tables, pose_tables)
        device_tables = tables.to(device)
        memory = _CapturedMemory(self._pool, device_tables, shape.tokens)
        pose_memory = None if pose_tables is None else PooledPoses(self._pose_pool, pose_tables.to(device))
        output = self._run(torch.stack(list(images)), device_tables, memory, shape, wanted, pose_memory)
        # Counted after everything was launched: a kernel's first launch cannot be captured.
        self._runs[kind] = self._runs.get(kind, 0) + 1
        return output

    def _graph(self, kind: Kind, images: Sequence[Tensor], poses: PoseTables | None) -> _Graph | None:
        # The graph for a kind of step; None to run the step without one.
        version = self._pool.version, self._pose_pool.version
        if self._version != version:
            self._version = version
            self._graphs.clear()
            self._runs.clear()
        graph = self._graphs.pop(kind, None)
        if graph is None:
            needed = 1 if len(self._graphs) < MOST_GRAPHS else EARNED_RUNS
            graph = self._new_graph(kind, images, poses) if self._runs.get(kind, 0) >= needed else None
        if graph is not None:
            self._graphs[kind] = graph  # now the most recently used one
        return graph

    def _new_graph(self, kind: Kind, images: Sequence[Tensor], poses: PoseTables | None) -> _Graph | None:
        while len(self._graphs) >= MOST_GRAPHS:
            self._graphs.pop(next(iter(self._graphs)))
        self._runs[kind] = 0
        try:
            return self._captured(kind, images, poses)
        except (RuntimeError, MemoryError) as error:
            if is_device_failure(error):
                raise DeviceError(
                    f"a CUDA graph could not be captured: {error} (with execution = 'fused' none is needed)"
                ) from error
            if not is_out_of_memory(error):
                raise
        # No part of the step has run, and the partial capture was dropped with the error.
        self._runs[kind] = -RETRY_RUNS
        torch.cuda.empty_cache()
        return None

    def _captured(self, kind: Kind, images: Sequence[Tensor], poses: PoseTables | None) -> _Graph:
        shape, wanted, _ = kind
        device = self._pool.shape.device
        pose_tables = None if poses is None else poses.to(device)
        pose_memory = None if pose_tables is None else PooledPoses(self._pose_pool, pose_tables)
        stacked, tables = torch.stack(list(images)), StepTables.empty(len(images), device)
        memory = _CapturedMemory(self._pool, tables, shape.tokens)
        # Made before the capture: tables made within one have no values until a replay, but steps without a graph read
        # the tables too.
        held = (memory, *self._fused.constants(*shape.grid))
        # All graphs share scratch memory: they run one after another, and the outputs of each step are read before the
        # next step runs. The memory is freed with the last graph, and PyTorch does not accept its handle any more.
        if self._scratch is None or not self._graphs:
            self._scratch = torch.cuda.graph_pool_handle()
        # A stream of our own: PyTorch's capture stream belongs to the device that was the first to capture.
        self._stream = self._stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        # The outer context restores the current stream, because the inner one does not if ending the capture fails.
        with (
            torch.cuda.stream(torch.cuda.current_stream(device)),
            torch.cuda.graph(graph, pool=self._scratch, stream=self._stream, capture_error_mode="thread_local"),
        ):
            output = self._run(stacked, tables, memory, shape, wanted, pose_memory)
        return _Graph(graph, held, stacked, tables, pose_tables, output)


class _CapturedMemory:
    # The memory of a step with one frame per stream, found through the step's tables alone. Each frame is a sequence of
    # its own.
    def __init__(self, pool: KVCachePool, tables: StepTables, frame_tokens: int) -> None:
        self._pool = pool
        cuts = torch.arange(tables.frames + 1) * frame_tokens
        self._sequences = Sequences(cuts.to(tables.flat.device), cuts, tables.rows, tables.written)

    def layer(self, index: int) -> Tensor:
        return self._pool.layer(index)

    def settle(self, index: int) -> None:
        pass

    def scan(self, layer: int, attention: KimiDeltaAttention, tokens: Tensor) -> Tensor:
        rows = tokens.flatten(0, 1)[None]
        out: Tensor = attention(rows, self._pool.states.layer(layer), self._sequences)[0]
        return out.view(tokens.shape)
