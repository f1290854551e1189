"""One run of the model over frames of several streams, from prepared pictures to features."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cache.attention_backend import AttentionBackend
from ..cache.kv_pool import KVCachePool
from ..cache.step import Step
from ..cache.stream_cache import StreamState
from ..cache.window import StepPlan, StreamWindow
from ..config import ModelConfig
from ..frames import Features, Flag, Size
from ..model.network import FrameNumbers, Network
from .cuda_graphs import CudaGraphRunner
from .outputs import GatheredLayer, PackedStep, TokenShape, fetch, gather, pack
from .preprocess import ResizeGeometry
from .stream import PreparedFrame, Stream


@dataclass(frozen=True, slots=True, eq=False)
class FrameChunk:
    """Frames of one stream that run together: its first block, or one or some later frames."""

    stream: Stream
    frames: tuple[PreparedFrame, ...]


WhileDeviceBusy = Callable[[Callable[[], bool]], None]
"""What to do while the device runs a batch by itself. It is given a function that says whether it still does, and must
not raise."""

Batch = tuple[FrameChunk, ...]
"""Segments of different streams whose pictures have one size; they run in one forward."""


def batches(chunks: Sequence[FrameChunk], max_batch: int) -> Iterator[Batch]:
    """Sort segments by the size of their pictures, at most `max_batch` frames a batch; no segment is split."""
    by_size: dict[Size, list[FrameChunk]] = {}
    for chunk in chunks:
        by_size.setdefault(chunk.frames[0].geometry.model_size, []).append(chunk)
    for group in by_size.values():
        batch: list[FrameChunk] = []
        for chunk in group:
            if batch and sum(len(other.frames) for other in batch) + len(chunk.frames) > max_batch:
                yield tuple(batch)
                batch = []
            batch.append(chunk)
        yield tuple(batch)


class ModelRunner:
    """Runs batches.

    Args:
        model: the network, on its device.
        config: what the model is and what is published of it.
        pool: where the streams' memories are stored.
        backend: how attention to them is computed.
        fused: runs the network by fused kernels instead; None where it runs as it is written.
    """

    def __init__(
        self,
        model: Network,
        config: ModelConfig,
        pool: KVCachePool,
        backend: AttentionBackend,
        fused: CudaGraphRunner | None = None,
    ) -> None:
        self._fused = fused
        self._model = model
        self._config = config
        self._pool = pool
        self._backend = backend
        device = pool.shape.device
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def prepare(self, chunk: FrameChunk) -> None:
        """Give a stream places in the pool for pictures of the segment's size, unless it has them.

        Raises:
            AdmissionError: there is no room for it. The stream has no memory then.
            DeviceError: the device failed.
        """
        stream = chunk.stream
        layout = self._token_shape(chunk.frames[0].geometry).layout(stream.config)
        if stream.state is not None and stream.state.window.layout == layout:
            return
        stream.free()
        stream.state = StreamState.allocate(self._pool, StreamWindow(layout))

    def run(self, batch: Batch, started_ns: int, while_device_busy: WhileDeviceBusy | None = None) -> list[Features]:
        """Features of all frames of a batch, in order; their streams have moved on by these frames.

        If it raises, each stream's memory is as it was or empty (see `Step`).

        Args:
            batch: what to run, each segment prepared.
            started_ns: monotonic time at which the step began.
            while_device_busy: called once all is launched, unless all is done then.
        """
        begun_ns = time.monotonic_ns()
        shape = self._token_shape(batch[0].frames[0].geometry)
        states = [chunk.stream.state for chunk in batch if chunk.stream.state is not None]
        images = [frame.image for chunk in batch for frame in chunk.frames]
        with Step(states, [len(chunk.frames) for chunk in batch], self._backend) as step:
            copy = fetch(self._gathered(images, step, shape), self._copies)
            if while_device_busy is not None and copy.pending:
                while_device_busy(lambda: copy.pending)
            packed = pack(copy.wait(), shape, self._config.output)
            step.commit()
        return self._features(batch, step.plans, packed, started_ns, (time.monotonic_ns() - begun_ns) // 1000)

    def _gathered(self, images: Sequence[Tensor], step: Step, shape: TokenShape) -> tuple[GatheredLayer, ...]:
        if self._fused is not None:
            return self._fused.run(images, step, shape)
        layers = self._config.output.layers
        outputs = self._model(torch.stack(list(images)), _numbers(step.plans), step, layers)
        return gather(outputs, shape, self._config.output)

    def _token_shape(self, geometry: ResizeGeometry) -> TokenShape:
        return TokenShape.of(self._config.network, geometry.grid)

    def _features(
        self, batch: Batch, plans: Sequence[StepPlan], packed: PackedStep, started_ns: int, model_us: int
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
                flags=frame.flags | self._flags(first, finite),
                model_size=frame.geometry.model_size,
                grid=frame.geometry.grid,
                to_source=frame.geometry.to_source,
                tensors=tensors,
                latency_us=_latency_us(frame, started_ns, model_us),
                context=planned.context if attends else None,
            )
            for (frame, first, planned), tensors, finite in zip(frames, packed.tensors, packed.finite, strict=True)
        ]

    def _flags(self, first: bool, finite: bool) -> set[Flag]:
        conditions = (
            (Flag.WARMUP, first and self._config.network.depth > 0),
            (Flag.NAN, not finite),
            (Flag.RANDOM_WEIGHTS, self._config.random_weights),
        )
        return {flag for flag, applies in conditions if applies}


def _numbers(plans: Sequence[StepPlan]) -> FrameNumbers:
    numbered = [(frame.number, plan.after.layout.scale_frames) for plan in plans for frame in plan.frames]
    return FrameNumbers(
        times=tuple(number for number, _ in numbered),
        first=tuple(number == 0 for number, _ in numbered),
        scale=tuple(number < scale_frames for number, scale_frames in numbered),
    )


def _latency_us(frame: PreparedFrame, started_ns: int, model_us: int) -> dict[str, int]:
    queue_us = max(0, started_ns - frame.stamp.capture_monotonic_ns) // 1000
    return {"queue": queue_us, "preprocess": frame.preprocess_us, "model": model_us}
