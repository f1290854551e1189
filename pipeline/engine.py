"""The engine owns the weights and every stream's memory, and turns frames into features. One thread uses it.

The first `scale_frames` frames of a stream attend to each other both ways, so their features come together, with the
last of them (flag `warmup`); every frame that went in comes out exactly once, as features or as a failure.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from .cache.dense import DenseStep, StreamState
from .cache.ledger import Layout, Ledger, StepPlan
from .config import ModelConfig, ResizeMode, StreamConfig
from .errors import DeviceError
from .frames import Features, FeatureTensor, Flag, Frame, FrameFailure, FrameStamp, Size
from .model.aggregator import FrameNumbers
from .model.checkpoint import load_model
from .model.devices import is_device_failure, torch_dtype
from .packing import TokenShape, pack
from .preprocess import Fit, fit, preprocess
from .stream import PreparedFrame, Stream

Outcome = Features | FrameFailure


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What runs.

    Attributes:
        name: the preset's name.
        weights: `sha256:<hex>` of the checkpoint, or `random:<seed>`.
        mixers: how the global blocks mix tokens over time, one word a layer pair.
        device, dtype: where and in which number format it computes.
        parameters: numbers in its weights.
    """

    name: str
    weights: str
    mixers: tuple[str, ...]
    device: str
    dtype: str
    parameters: int


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """One stream's memory.

    Attributes:
        camera: the stream's name.
        epoch: number of its memory; the memory was restarted so many times.
        frames: frames in this epoch so far.
        keyframes: those of them that entered the memory.
        history_dropped: evicted frames of which nothing is attended to any more.
        waiting: frames that wait for the stream's first step.
        nbytes: bytes of its memory.
    """

    camera: str
    epoch: int
    frames: int
    keyframes: int
    history_dropped: int
    waiting: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counts since the engine was made, and its streams now.

    Attributes:
        forwards: runs of the model.
        features: frames that gave features.
        failures: frames that failed.
        nan_frames: frames that gave non-finite numbers (among `features`).
        streams: the open streams.
    """

    forwards: int = 0
    features: int = 0
    failures: int = 0
    nan_frames: int = 0
    streams: tuple[StreamStatistics, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Segment:
    # Frames of one stream that run in one forward: its first block, or one later frame.
    stream: Stream
    frames: tuple[PreparedFrame, ...]


class Engine:
    """Loads the model; a context manager that frees it.

    Raises:
        ModelError: the checkpoint or the device cannot be used.
        ValueError: the configuration is impossible.
    """

    def __init__(self, config: ModelConfig) -> None:
        _check(config)
        self._config = config
        self._device = torch.device(config.device)
        self._model, self._weights = load_model(config)
        self._streams: dict[str, Stream] = {}
        self._counts = EngineStatistics()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop all streams. Idempotent."""
        self._streams.clear()

    @property
    def description(self) -> ModelDescription:
        """What runs."""
        config = self._config
        return ModelDescription(
            name=config.name,
            weights=self._weights,
            mixers=("softmax",) * config.network.depth,
            device=config.device,
            dtype=config.dtype,
            parameters=sum(parameter.numel() for parameter in self._model.parameters()),
        )

    def statistics(self) -> EngineStatistics:
        """Counts and memory; takes no time worth speaking of."""
        return replace(self._counts, streams=tuple(_stream_statistics(stream) for stream in self._streams.values()))

    def open_stream(self, camera: str, stream: StreamConfig, resize: ResizeMode) -> None:
        """Begin a stream. Its memory is allocated at its first step.

        Raises:
            ValueError: the camera has a stream already.
        """
        if camera in self._streams:
            raise ValueError(f"camera {camera!r} already has a stream")
        self._streams[camera] = Stream(camera, stream, resize)

    def close_stream(self, camera: str) -> None:
        """Drop a stream with its memory. Call `flush` first: frames that still wait give nothing. Idempotent."""
        self._streams.pop(camera, None)

    @torch.inference_mode()
    def flush(self, camera: str) -> list[Outcome]:
        """Run the frames of a stream that wait for more: they become its scale frames, fewer than configured.

        Returns:
            their features, or failures; nothing where none wait or the camera has no stream.

        Raises:
            DeviceError: see `step`.
        """
        stream = self._streams.get(camera)
        return [] if stream is None else self._release(stream, time.monotonic_ns())

    @torch.inference_mode()
    def step(self, frames: Sequence[Frame]) -> list[Outcome]:
        """Take frames, at most one of each camera, and give what is ready.

        Pictures that have the same size in the model run in one forward, whatever the age of their streams, at most
        `max_batch` frames at a time (a stream's first block stays whole). A frame cannot be used (too thin, wrong
        shape, no stream): it fails alone. A forward fails: its frames fail, its streams start anew. A frame gives
        non-finite numbers: they are given, flagged, and its stream starts anew.

        Returns:
            features and failures, those of one camera in the order of its frames; nothing yet for a frame that waits
            for the rest of its stream's first block, and all of that block with its last frame.

        Raises:
            DeviceError: the device itself failed; the engine must not be used any more.
            ValueError: two frames of one camera.
        """
        started_ns = time.monotonic_ns()
        if len({frame.stamp.camera for frame in frames}) < len(frames):
            raise ValueError("a step takes at most one frame of each camera")
        outcomes: list[Outcome] = []
        segments: list[_Segment] = []
        for frame in frames:
            outcomes += self._admit(frame, started_ns)
            stream = self._streams.get(frame.stamp.camera)
            if stream is not None and stream.ready:
                segments.append(_Segment(stream, stream.take()))
        for batch in _batches(segments, self._config.max_batch):
            outcomes += self._run(batch, started_ns)
        return outcomes

    @torch.inference_mode()
    def warm_up(self, sizes: Sequence[Size]) -> None:
        """Run the model on each source size, as a first and as a later frame, so that the first real step is quick.

        Args:
            sizes: width and height of the pictures that cameras will give; all are cropped or padded as the open
                streams ask for (cropped, where there are none).

        Raises:
            ValueError: a size cannot be fitted to the model.
            DeviceError: the device failed.
            torch.OutOfMemoryError: the device has no room for one frame.
        """
        modes = {stream.resize for stream in self._streams.values()} or {ResizeMode.CROP}
        done: set[Size] = set()
        for how in (self._fit(size, mode) for size in sizes for mode in sorted(modes)):
            if how.model_size not in done:
                done.add(how.model_size)
                self._rehearse(how)

    def _rehearse(self, how: Fit) -> None:
        stream = Stream("warm-up", StreamConfig(scale_frames=1, window=1, history_frames=1), ResizeMode.CROP)
        width, height = how.source_size
        stamp = FrameStamp("warm-up", 0, 0, 0, 0, None, how.source_size)
        blank = torch.zeros(height, width, 3, dtype=torch.uint8).numpy()
        try:
            for _ in range(2):
                stream.add(stamp, preprocess(blank, how, self._device), how, preprocess_us=0)
                self._forward((_Segment(stream, stream.take()),), 0)
        except Exception as error:
            if is_device_failure(error):
                raise DeviceError(f"{self._config.device} failed: {error}") from error
            raise

    def _admit(self, frame: Frame, started_ns: int) -> list[Outcome]:
        # Lets the frame wait in its stream; gives the frames that its arrival ends the wait of, and its own failure.
        stamp = frame.stamp
        stream = self._streams.get(stamp.camera)
        if stream is None:
            return self._fail([stamp], "its camera has no stream")
        begun_ns = time.monotonic_ns()
        try:
            how = self._fit(stamp.source_size, stream.resize)
            image = preprocess(frame.pixels, how, self._device)
        except (ValueError, RuntimeError) as error:  # RuntimeError: torch, out of memory for one
            return self._failed([stamp], error)
        released: list[Outcome] = []
        if stream.breaks_with(stamp):
            released = self._release(stream, started_ns)
            stream.restart()
        stream.add(stamp, image, how, preprocess_us=(time.monotonic_ns() - begun_ns) // 1000)
        return released

    def _fit(self, size: Size, mode: ResizeMode) -> Fit:
        return fit(size, mode, self._config.image_width, self._config.network.patch_size)

    def _release(self, stream: Stream, started_ns: int) -> list[Outcome]:
        return self._run((_Segment(stream, stream.take()),), started_ns) if stream.waiting else []

    def _run(self, batch: tuple[_Segment, ...], started_ns: int) -> list[Outcome]:
        try:
            outcomes = self._forward(batch, started_ns)
        except Exception as error:  # whatever it was, no stream may go on half written, and no frame may be lost
            for segment in batch:
                segment.stream.restart()
            return self._failed([frame.stamp for segment in batch for frame in segment.frames], error)
        nan_frames = sum(Flag.NAN in features.flags for features in outcomes)
        self._count(forwards=1, features=len(outcomes), nan_frames=nan_frames)
        return list(outcomes)

    def _forward(self, batch: tuple[_Segment, ...], started_ns: int) -> list[Features]:
        begun_ns = time.monotonic_ns()
        frames = [frame for segment in batch for frame in segment.frames]
        shape = self._token_shape(frames[0].how)
        states = [self._state(segment.stream, shape) for segment in batch]
        step = DenseStep(states, [len(segment.frames) for segment in batch])
        layers = self._config.output.layers
        outputs = self._model(_stack(frames), _numbers(batch, step.plans), step, layers)
        packed = pack(outputs, shape, self._config.output)
        step.commit()
        model_us = (time.monotonic_ns() - begun_ns) // 1000
        plans = [plan for plan in step.plans for _ in plan.places]
        features = [
            self._features(frame, plan, tensors, finite, started_ns, model_us)
            for frame, plan, tensors, finite in zip(frames, plans, packed.tensors, packed.finite, strict=True)
        ]
        _restart_non_finite(batch, features)
        return features

    def _token_shape(self, how: Fit) -> TokenShape:
        network = self._config.network
        return TokenShape(network.register_tokens, how.grid, network.channels)

    def _state(self, stream: Stream, shape: TokenShape) -> StreamState:
        if stream.state is None:
            ledger = Ledger(Layout.of(stream.config, shape.tokens, shape.special))
            layers = self._config.output.layers[-1] + 1
            heads, dtype = self._config.network.heads, torch_dtype(self._config.dtype)
            stream.state = StreamState.allocate(ledger, layers, heads, self._model.head_dim, dtype, self._device)
        return stream.state

    def _features(
        self,
        frame: PreparedFrame,
        plan: StepPlan,
        tensors: tuple[FeatureTensor, ...],
        finite: bool,
        started_ns: int,
        model_us: int,
    ) -> Features:
        conditions = (
            (Flag.WARMUP, plan.first),
            (Flag.NAN, not finite),
            (Flag.RANDOM_WEIGHTS, self._config.checkpoint is None),
        )
        queue_us = max(0, started_ns - frame.stamp.capture_monotonic_ns) // 1000
        return Features(
            stamp=frame.stamp,
            epoch=frame.epoch,
            epoch_frame=frame.epoch_frame,
            keyframe=plan.keyframe,
            flags=frame.flags | {flag for flag, applies in conditions if applies},
            model_size=frame.how.model_size,
            grid=frame.how.grid,
            to_source=frame.how.to_source,
            tensors=tensors,
            latency_us={"queue": queue_us, "preprocess": frame.preprocess_us, "model": model_us},
        )

    def _failed(self, stamps: Sequence[FrameStamp], error: Exception) -> list[Outcome]:
        if is_device_failure(error):
            raise DeviceError(f"{self._config.device} failed: {error}") from error
        return self._fail(stamps, f"{type(error).__name__}: {error}")

    def _fail(self, stamps: Sequence[FrameStamp], reason: str) -> list[Outcome]:
        self._count(failures=len(stamps))
        return [FrameFailure(stamp, reason) for stamp in stamps]

    def _count(self, *, forwards: int = 0, features: int = 0, failures: int = 0, nan_frames: int = 0) -> None:
        counts = self._counts
        self._counts = EngineStatistics(
            forwards=counts.forwards + forwards,
            features=counts.features + features,
            failures=counts.failures + failures,
            nan_frames=counts.nan_frames + nan_frames,
        )


def _check(config: ModelConfig) -> None:
    layers, depth, patch_size = config.output.layers, config.network.depth, config.network.patch_size
    if not layers or list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < depth:
        raise ValueError(f"output.layers are ascending numbers from 0 to {depth - 1}, got {list(layers)}")
    if not config.output.tokens or len(set(config.output.tokens)) < len(config.output.tokens):
        raise ValueError(f"output.tokens are distinct groups, at least one, got {list(config.output.tokens)}")
    if config.output.pool < 1 or config.max_batch < 1:
        raise ValueError(f"output.pool and max_batch are at least 1, got {config.output.pool} and {config.max_batch}")
    if config.image_width < patch_size or config.image_width % patch_size:
        raise ValueError(f"image_width is a multiple of the patch size {patch_size}, got {config.image_width}")


def _batches(segments: Sequence[_Segment], max_batch: int) -> Iterator[tuple[_Segment, ...]]:
    by_size: dict[Size, list[_Segment]] = {}
    for segment in segments:
        by_size.setdefault(segment.frames[0].how.model_size, []).append(segment)
    for group in by_size.values():
        batch: list[_Segment] = []
        for segment in group:
            if batch and sum(len(other.frames) for other in batch) + len(segment.frames) > max_batch:
                yield tuple(batch)
                batch = []
            batch.append(segment)
        yield tuple(batch)


def _stack(frames: Sequence[PreparedFrame]) -> Tensor:
    return torch.stack([frame.image for frame in frames])


def _numbers(batch: Sequence[_Segment], plans: Sequence[StepPlan]) -> FrameNumbers:
    numbered = [
        (number, segment.stream.config.scale_frames)
        for segment, plan in zip(batch, plans, strict=True)
        for number in plan.frame_numbers
    ]
    return FrameNumbers(
        times=tuple(number for number, _ in numbered),
        first=tuple(number == 0 for number, _ in numbered),
        scale=tuple(number < scale_frames for number, scale_frames in numbered),
    )


def _restart_non_finite(batch: Sequence[_Segment], features: Sequence[Features]) -> None:
    bad = {record.stamp.camera for record in features if Flag.NAN in record.flags}
    for segment in batch:
        if segment.stream.camera in bad:
            segment.stream.restart()


def _stream_statistics(stream: Stream) -> StreamStatistics:
    ledger = None if stream.state is None else stream.state.ledger
    return StreamStatistics(
        camera=stream.camera,
        epoch=stream.epoch,
        frames=stream.next_frame,
        keyframes=0 if ledger is None else ledger.committed,
        history_dropped=0 if ledger is None else ledger.evicted - ledger.remembered,
        waiting=len(stream.waiting),
        nbytes=0 if stream.state is None else stream.state.nbytes,
    )
