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
from ..cache.step import Step
from ..cache.step_tables import StepTables
from ..errors import DeviceError
from ..model.delta_attention import KimiDeltaAttention
from ..model.delta_state import Sequences
from ..model.devices import is_device_failure, is_out_of_memory
from .fused_model import FusedAggregator, Memory
from .host_copy import DeviceBuffer
from .outputs import OutputHeads
from .token_shape import TokenShape

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

MOST_GRAPHS = 32
"""Maximum number of graphs kept. Each takes about ten megabytes; the least recently used one is evicted."""

EARNED_RUNS = 64
"""Number of runs without a graph before a kind of step evicts another kind's graph. If this were 1, and the kinds that
alternate were one more than there is room for, every step would capture a graph, which costs more than running the step
without one. The number is chosen, not measured."""

RETRY_RUNS = 1000
"""After a capture that found no room, the number of runs without a graph before the next attempt."""

Kind = tuple[TokenShape, int]
"""The kind of a step: its frames' token shape, and the number of frames. Steps of one kind share a graph."""


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    # `held` keeps alive the other tensors that the graph reads. They were made before the capture, and their owners may
    # drop them.
    graph: torch.cuda.CUDAGraph
    held: tuple[object, ...]
    images: Tensor
    tables: StepTables
    output: tuple[DeviceBuffer, ...]

    def replay(self, images: Sequence[Tensor], tables: StepTables) -> tuple[DeviceBuffer, ...]:
        torch.stack(list(images), out=self.images)
        self.tables.flat.copy_(tables.flat, non_blocking=True)
        self.graph.replay()
        return self.output


class CudaGraphRunner:
    """Runs the network with fused kernels, as CUDA graphs where possible.

    Args:
        fused: the network.
        pool: storage of the streams' KV caches.
        heads: make the published outputs.
        capture: whether to capture graphs.
    """

    def __init__(self, fused: FusedAggregator, pool: KVCachePool, heads: OutputHeads, *, capture: bool) -> None:
        self._fused = fused
        self._pool = pool
        self._heads = heads
        self._capture = capture
        self._version = pool.version
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

    def run(self, images: Sequence[Tensor], step: Step, shape: TokenShape) -> tuple[DeviceBuffer, ...]:
        """Run one forward pass.

        Args:
            images: float32 [3, h, w] each, RGB in [0, 1].
            step: the step, which must still be open.
            shape: the token shape of the frames.

        Returns:
            the buffers of `OutputHeads.gather`, valid until the next call.

        Raises:
            DeviceError: the device failed during a capture.
        """
        try:
            tables = self._filled(step, len(images))
            if self._capture and step.single:
                return self._run_single(images, tables, shape)
            return self._run(torch.stack(list(images)), tables.to(self._pool.shape.device), step, shape)
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

    def _run(self, images: Tensor, tables: StepTables, memory: Memory, shape: TokenShape) -> tuple[DeviceBuffer, ...]:
        return self._heads.gather(self._fused(images, tables, memory, self._heads.layers), shape)

    def _run_single(self, images: Sequence[Tensor], tables: StepTables, shape: TokenShape) -> tuple[DeviceBuffer, ...]:
        kind = shape, len(images)
        graph = self._graph(kind, images)
        if graph is not None:
            return graph.replay(images, tables)
        device_tables = tables.to(self._pool.shape.device)
        memory = _CapturedMemory(self._pool, device_tables, shape.tokens)
        output = self._run(torch.stack(list(images)), device_tables, memory, shape)
        # Counted after everything was launched: a kernel's first launch cannot be captured.
        self._runs[kind] = self._runs.get(kind, 0) + 1
        return output

    def _graph(self, kind: Kind, images: Sequence[Tensor]) -> _Graph | None:
        # The graph for a kind of step; None to run the step without one.
        if self._version != self._pool.version:
            self._version = self._pool.version
            self._graphs.clear()
            self._runs.clear()
        graph = self._graphs.pop(kind, None)
        if graph is None:
            needed = 1 if len(self._graphs) < MOST_GRAPHS else EARNED_RUNS
            graph = self._new_graph(kind, images) if self._runs.get(kind, 0) >= needed else None
        if graph is not None:
            self._graphs[kind] = graph  # now the most recently used one
        return graph

    def _new_graph(self, kind: Kind, images: Sequence[Tensor]) -> _Graph | None:
        while len(self._graphs) >= MOST_GRAPHS:
            self._graphs.pop(next(iter(self._graphs)))
        self._runs[kind] = 0
        try:
            return self._captured(kind[0], images)
        except (RuntimeError, MemoryError) as error:
            if is_device_failure(error):
                raise DeviceError(
                    f"a CUDA graph could not be captured (execution = 'fused' needs none): {error}"
                ) from error
            if not is_out_of_memory(error):
                raise
        # No part of the step has run, and the partial capture was dropped with the error.
        self._runs[kind] = -RETRY_RUNS
        torch.cuda.empty_cache()
        return None

    def _captured(self, shape: TokenShape, images: Sequence[Tensor]) -> _Graph:
        device = self._pool.shape.device
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
            output = self._run(stacked, tables, memory, shape)
        return _Graph(graph, held, stacked, tables, output)


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
