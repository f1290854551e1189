"""Steps as CUDA graphs: captured once for each size of pictures and number of frames, replayed with new numbers.

A step of one later frame of each of its streams is the same launches whatever the streams' ages: pictures and tables
are copied to where the graph reads them, and its output is read where it writes it. A kind of step runs once without a
graph, which compiles its kernels and makes its tables, is captured the second time, and replayed from then on. Graphs
know the addresses of the streams' memory: when the pool moves it, they are made anew. A graph for which the device has
no room is done without: the step runs as it did before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..cache.kv_pool import KVCachePool
from ..cache.step import Step
from ..cache.step_tables import StepTables
from ..config import OutputConfig
from ..errors import DeviceError
from ..model.delta_attention import KimiDeltaAttention
from ..model.delta_state import Sequences
from ..model.devices import is_device_failure, is_out_of_memory
from .fused_model import FusedAggregator, Memory
from .outputs import GatheredLayer, TokenShape, gather

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

MOST_GRAPHS = 32
"""Captured at once, the least recently used one goes first: some ten megabytes each."""

EARNED_RUNS = 64
"""Runs without a graph after which a kind of step takes the place of another: were it one, kinds that come in turn, one
more than there is room for, would each be captured at every step, which launches all that a run does and more. The
number is chosen, not measured."""

RETRY_RUNS = 1000
"""Runs without a graph until one is tried again for which there was no room."""

Kind = tuple[TokenShape, int]
"""What the frames of a step are, and how many."""


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    # `held` is what else the graph reads, made before it was captured: others may let it go.
    graph: torch.cuda.CUDAGraph
    held: tuple[object, ...]
    images: Tensor
    tables: StepTables
    output: tuple[GatheredLayer, ...]

    def replay(self, images: Sequence[Tensor], tables: StepTables) -> tuple[GatheredLayer, ...]:
        torch.stack(list(images), out=self.images)
        self.tables.flat.copy_(tables.flat, non_blocking=True)
        self.graph.replay()
        return self.output


class CudaGraphRunner:
    """Runs steps by fused kernels, and on CUDA as graphs where it can.

    Args:
        fused: runs the network.
        pool: the streams' memories.
        output: what is wanted of a step.
        capture: whether to capture graphs.
    """

    def __init__(self, fused: FusedAggregator, pool: KVCachePool, output: OutputConfig, *, capture: bool) -> None:
        self._fused = fused
        self._pool = pool
        self._output = output
        self._capture = capture
        self._version = pool.version
        self._runs: dict[Kind, int] = {}  # of kinds that have no graph; some hundreds: sizes in patches, and frames
        self._graphs: dict[Kind, _Graph] = {}
        self._host: dict[int, StepTables] = {}
        self._scratch: _POOL_HANDLE | None = None
        self._stream: torch.cuda.Stream | None = None

    def run(self, images: Sequence[Tensor], step: Step, shape: TokenShape) -> tuple[GatheredLayer, ...]:
        """Run a step.

        Args:
            images: of its frames, float32 [3, h, w] each, RGB in [0, 1].
            step: not left yet.
            shape: what the frames' tokens are.

        Returns:
            what `gather` gives of it, valid until the next step.

        Raises:
            DeviceError: a capture failed, and with it the device.
        """
        try:
            tables = self._filled(step, len(images))
            if self._capture and step.single:
                return self._run_single(images, tables, shape)
            return self._run(torch.stack(list(images)), tables.to(self._pool.shape.device), step, shape)
        except BaseException:
            self._host.clear()  # nobody waits for this step: its copy to the device may still read them
            raise

    def _filled(self, step: Step, frames: int) -> StepTables:
        # Steps wait for their output, so the copy of the step before has been read.
        tables = self._host.get(frames)
        if tables is None:
            pinned = self._pool.shape.device.type == "cuda"
            tables = self._host[frames] = StepTables.empty(frames, torch.device("cpu"), pinned=pinned)
        step.fill(tables)
        return tables

    def _run(self, images: Tensor, tables: StepTables, memory: Memory, shape: TokenShape) -> tuple[GatheredLayer, ...]:
        return gather(self._fused(images, tables, memory, self._output.layers), shape, self._output)

    def _run_single(self, images: Sequence[Tensor], tables: StepTables, shape: TokenShape) -> tuple[GatheredLayer, ...]:
        kind = shape, len(images)
        graph = self._graph(kind, images)
        if graph is not None:
            return graph.replay(images, tables)
        device_tables = tables.to(self._pool.shape.device)
        memory = _CapturedMemory(self._pool, device_tables, shape.tokens)
        output = self._run(torch.stack(list(images)), device_tables, memory, shape)
        # Counted once all of it has been launched: what a kernel's first launch does cannot be captured.
        self._runs[kind] = self._runs.get(kind, 0) + 1
        return output

    def _graph(self, kind: Kind, images: Sequence[Tensor]) -> _Graph | None:
        # The graph of a kind of step; None where it is to run without.
        if self._version != self._pool.version:
            self._version = self._pool.version
            self._graphs.clear()
            self._runs.clear()
        graph = self._graphs.pop(kind, None)
        if graph is None:
            needed = 1 if len(self._graphs) < MOST_GRAPHS else EARNED_RUNS
            graph = self._new_graph(kind, images) if self._runs.get(kind, 0) >= needed else None
        if graph is not None:
            self._graphs[kind] = graph  # most recently used
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
                    f"a step could not be captured (execution = 'fused' does without): {error}"
                ) from error
            if not is_out_of_memory(error):
                raise
        # Nothing of the step has run, and what was captured is gone with the error.
        self._runs[kind] = -RETRY_RUNS
        torch.cuda.empty_cache()
        return None

    def _captured(self, shape: TokenShape, images: Sequence[Tensor]) -> _Graph:
        device = self._pool.shape.device
        pictures, tables = torch.stack(list(images)), StepTables.empty(len(images), device)
        memory = _CapturedMemory(self._pool, tables, shape.tokens)
        # Before: what is made within a capture has no numbers until a replay, and steps without a graph read it, too.
        held = (memory, *self._fused.constants(*shape.grid))
        # All graphs share their scratch memory: they run one after the other, and a step's output is read before. It
        # goes with the last of them, and PyTorch refuses its handle from then on.
        if self._scratch is None or not self._graphs:
            self._scratch = torch.cuda.graph_pool_handle()
        # PyTorch's own stream for captures would be of the device that captured first.
        self._stream = self._stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        # The outer context: where ending the capture fails, the inner one leaves its stream the current one.
        with (
            torch.cuda.stream(torch.cuda.current_stream(device)),
            torch.cuda.graph(graph, pool=self._scratch, stream=self._stream, capture_error_mode="thread_local"),
        ):
            output = self._run(pictures, tables, memory, shape)
        return _Graph(graph, held, pictures, tables, output)


class _CapturedMemory:
    # A step's memory by its tables alone: one frame of each stream, every frame a sequence of its own.
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
