"""One forward pass over frames of several streams, from preprocessed images to features."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..cache.attention_backend import AttentionBackend
from ..cache.kv_pool import KVCachePool
from ..cache.pose_memory import PoseStep
from ..cache.step import Step
from ..cache.window import StepPlan
from ..config import ModelConfig
from ..frames import Features, Flag, OutputTensor, Size
from ..model.network import FrameNumbers, Network
from .cuda_graphs import CudaGraphRunner
from .host_copy import DeviceBuffer, fetch
from .outputs import OutputHeads, StepTensors, Wanted
from .pose_outputs import ENCODING, WINDOW
from .preprocess import ResizeGeometry, shifted
from .stream import PreparedFrame, Stream, allocate_memory
from .token_shape import TokenShape


@dataclass(frozen=True, slots=True, eq=False)
class FrameChunk:
    """Consecutive frames of one stream that run together: the stream's first block, or one or more later frames."""

    stream: Stream
    frames: tuple[PreparedFrame, ...]

    @property
    def kind(self) -> tuple[Size, int]:
        """What chunks of one forward pass have in common: the size of images, and of windows (see `TokenShape`)."""
        state = self.stream.state
        window = 0 if state is None else state.window.next_window(len(self.frames))
        return self.frames[0].geometry.model_size, window


WhileDeviceBusy = Callable[[Callable[[], bool]], None]
"""A function with work for the host to do while the device runs a batch. Its argument is a function that tells whether
the device is still busy. It must not raise."""

Batch = tuple[FrameChunk, ...]
"""Chunks of different streams that run in one forward pass; all are of the same kind."""


def batches(chunks: Sequence[FrameChunk], max_batch: int) -> Iterator[Batch]:
    """Group chunks by kind into batches of at most `max_batch` frames. No chunk is split, even if it has more.

    Chunks that want the same outputs come one after another. So the same cameras make the same kind of batch, which has
    a graph of its own, in whatever order their frames arrive.
    """
    by_kind: dict[tuple[Size, int], list[FrameChunk]] = {}
    for chunk in chunks:
        by_kind.setdefault(chunk.kind, []).append(chunk)
    for group in by_kind.values():
        batch: list[FrameChunk] = []
        for chunk in sorted(group, key=lambda chunk: sorted(chunk.frames[0].wanted)):
            if batch and sum(len(other.frames) for other in batch) + len(chunk.frames) > max_batch:
                yield tuple(batch)
                batch = []
            batch.append(chunk)
        yield tuple(batch)


class ModelRunner:
    """Runs batches through the network.

    Args:
        model: the network, on its device.
        config: the model's configuration.
        heads: make the published outputs.
        pools: storage of the streams' KV caches, and of the camera head's.
        backend: attention backend.
        graphs: runs the network with fused kernels; None to run it as plain PyTorch modules.

    Attributes:
        model, heads, backend, graphs: as given.
    """

    def __init__(
        self,
        model: Network,
        config: ModelConfig,
        heads: OutputHeads,
        pools: tuple[KVCachePool, KVCachePool],
        backend: AttentionBackend,
        graphs: CudaGraphRunner | None = None,
    ) -> None:
        self.model = model
        self.heads = heads
        self.backend = backend
        self.graphs = graphs
        self._config = config
        self._pool, self._pose_pool = pools
        device = self._pool.shape.device
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def prepare(self, chunk: FrameChunk) -> None:
        """Allocate a stream's cache for images of the chunk's size, unless it has one.

        Raises:
            AdmissionError: the pool has no room. The stream then has no cache.
            ValueError: the network cannot follow the stream's settings.
            DeviceError: the device failed.
        """
        stream = chunk.stream
        layout = self._token_shape(chunk.frames[0].geometry).layout(stream.config)
        if stream.state is not None and stream.state.window.layout == layout:
            return
        allocate_memory(stream, layout, (self._pool, self._pose_pool))

    def run(self, batch: Batch, started_ns: int, while_device_busy: WhileDeviceBusy | None = None) -> list[Features]:
        """Run a batch and advance its streams.

        After an exception, each stream's cache is unchanged or empty (see `Step`).

        Args:
            batch: the batch; `prepare` must have been called for each of its chunks.
            started_ns: monotonic time at which the step began.
            while_device_busy: called once all work is launched, unless the work is already done by then.

        Returns:
            features of all frames, in order. Poses, depths and points are in the epoch's own frame of reference and
            unit.
        """
        begun_ns = time.monotonic_ns()
        shape = self._token_shape(batch[0].frames[0].geometry).seeing(batch[0].kind[1])
        states = [chunk.stream.state for chunk in batch if chunk.stream.state is not None]
        frames = [frame for chunk in batch for frame in chunk.frames]
        poses = _pose_step(batch)
        with Step(states, [len(chunk.frames) for chunk in batch], self.backend) as step:
            results = self._results(frames, step, shape, poses, while_device_busy)
            step.commit()
            if poses is not None:
                poses.commit()
        return self._features(batch, step.plans, results, started_ns, (time.monotonic_ns() - begun_ns) // 1000)

    def query(self, chunk: FrameChunk, plan: StepPlan, pose_plan: StepPlan | None, started_ns: int) -> Features:
        """Run one frame against its stream's memory, without changing it.

        Args:
            chunk: the stream, which has a memory, and the frame.
            plan, pose_plan: the plans for the stream's KV cache and for its pose memory, if it has one; see
                `StreamWindow.plan_query`.
            started_ns: monotonic time at which the query began.

        Returns:
            the frame's features, as `run` returns them.
        """
        begun_ns, stream = time.monotonic_ns(), chunk.stream
        assert stream.state is not None, "the stream has a memory"
        shape = self._token_shape(chunk.frames[0].geometry)
        poses = None if stream.poses is None or pose_plan is None else PoseStep([stream.poses], [pose_plan])
        with Step([stream.state], [plan], self.backend) as step:
            results = self._results(chunk.frames, step, shape, poses, None)
        took_us = (time.monotonic_ns() - begun_ns) // 1000
        return self._features((chunk,), step.plans, results, started_ns, took_us)[0]

    def _results(
        self,
        frames: Sequence[PreparedFrame],
        step: Step,
        shape: TokenShape,
        poses: PoseStep | None,
        while_device_busy: WhileDeviceBusy | None,
    ) -> StepTensors:
        images, wanted = [frame.image for frame in frames], tuple(frame.wanted for frame in frames)
        copy = fetch(self._forward(images, step, shape, wanted, poses), self._copies)
        if while_device_busy is not None and copy.pending:
            while_device_busy(lambda: copy.pending)
        return self.heads.unpack(copy.wait(), shape, wanted)

    def _forward(
        self, images: Sequence[Tensor], step: Step, shape: TokenShape, wanted: Wanted, poses: PoseStep | None
    ) -> tuple[DeviceBuffer, ...]:
        if self.graphs is not None:
            return self.graphs.run(images, step, shape, wanted, poses)
        layers = self.model(torch.stack(list(images)), _numbers(step.plans), step, self.heads.layers)
        return self.heads.gather(layers, shape, wanted, None if poses is None else poses.memory())

    def _token_shape(self, geometry: ResizeGeometry) -> TokenShape:
        return TokenShape.of(self._config.network, geometry.grid)

    def _features(
        self, batch: Batch, plans: Sequence[StepPlan], results: StepTensors, started_ns: int, model_us: int
    ) -> list[Features]:
        attends = self._config.attention_layers > 0
        frames = [
            (frame, plan.first, planned)
            for chunk, plan in zip(batch, plans, strict=True)
            for frame, planned in zip(chunk.frames, plan.frames, strict=True)
        ]
        return [
            Features(
                stamp=frame.stamp,
                epoch=frame.epoch,
                epoch_frame=frame.epoch_frame,
                keyframe=planned.keyframe,
                flags=frame.flags | self._flags(first, finite and _pose_is_finite(tensors)),
                model_size=frame.geometry.model_size,
                grid=frame.geometry.grid,
                to_source=shifted(frame.geometry.to_source, frame.stamp.crop),
                tensors=tensors,
                latency_us=_latency_us(frame, started_ns, model_us),
                context=planned.context if attends else None,
            )
            for (frame, first, planned), tensors, finite in zip(frames, results.tensors, results.finite, strict=True)
        ]

    def _flags(self, first: bool, finite: bool) -> set[Flag]:
        conditions = (
            (Flag.WARMUP, first and self._config.network.depth > 0),
            (Flag.NAN, not finite),
            (Flag.RANDOM_WEIGHTS, self._config.random_weights),
        )
        return {flag for flag, applies in conditions if applies}


def _pose_step(batch: Batch) -> PoseStep | None:
    # The streams that want poses, in the order of the batch.
    chunks = [(chunk.stream.poses, len(chunk.frames)) for chunk in batch]
    states = [(state, count) for state, count in chunks if state is not None]
    return PoseStep([state for state, _ in states], [count for _, count in states]) if states else None


def _pose_is_finite(tensors: Sequence[OutputTensor]) -> bool:
    named = (ENCODING.name, WINDOW)
    return all(np.isfinite(tensor.data).all() for tensor in tensors if tensor.name in named)


def _numbers(plans: Sequence[StepPlan]) -> FrameNumbers:
    planned = [(frame, plan.after.layout.scale_frames) for plan in plans for frame in plan.frames]
    return FrameNumbers(
        times=tuple(frame.number for frame, _ in planned),
        first=tuple(frame.number == 0 for frame, _ in planned),
        scale=tuple(frame.number < scale_frames for frame, scale_frames in planned),
        later=tuple(frame.later for frame, _ in planned),
        windows=tuple(len(frame.window) for frame, _ in planned),
    )


def _latency_us(frame: PreparedFrame, started_ns: int, model_us: int) -> dict[str, int]:
    queue_us = max(0, started_ns - frame.stamp.capture_monotonic_ns) // 1000
    return {"queue": queue_us, "preprocess": frame.preprocess_us, "model": model_us}
