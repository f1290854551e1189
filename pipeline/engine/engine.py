"""The engine owns the weights and every stream's memory, and turns frames into features. One thread uses it.

The first `scale_frames` frames of a stream attend to each other both ways, so their features come together, with the
last of them (flag `warmup`); every frame that went in comes out exactly once, as features or as a failure.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import torch

from ..cache.backends.select import choose_backend
from ..cache.kv_pool import KVCachePool
from ..config import ModelConfig, ResizeMode, StreamConfig
from ..errors import AdmissionError
from ..frames import PATCH_GROUPS, Frame, FrameStamp, Outcome, Size
from ..model.checkpoint import load_model
from ..model.devices import is_out_of_memory
from ..model.weight_files import file_note
from .admission import check_admission, memory_limit, pool_shape
from .checkpoint import ModelIdentity, SavedStream, load_stream, save_stream
from .execution import choose_execution
from .executor import BatchExecutor, StepOutput
from .images import Pictures
from .model_runner import FrameChunk, ModelRunner, WhileDeviceBusy
from .preprocess import ResizeGeometry, resize_geometry
from .statistics import EngineStatistics, LoadTimes, ModelDescription, StreamStatistics, stream_statistics
from .stream import Stream

__all__ = ["Engine", "EngineStatistics", "ModelDescription", "Outcome", "StreamStatistics"]

MEMORYLESS = StreamConfig(scale_frames=1, window=1, history_frames=0)
"""What streams are told where the network has no memory: no frame waits for others."""


class Engine:
    """Loads the model; a context manager that frees the streams' memory.

    Its device becomes the thread's current one: Triton and the capture of graphs know no other.

    Raises:
        ModelError: the checkpoint or the device cannot be used.
        ValueError: the configuration is impossible.
    """

    def __init__(self, config: ModelConfig) -> None:
        _check(config)
        begun_s = time.monotonic()
        self._device = torch.device(config.device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        model, weights = load_model(config)
        shape = pool_shape(config)
        self._pool = KVCachePool(shape, memory_limit(self._device))
        loaded_s = time.monotonic()
        attention = choose_backend(config, shape)
        fused = choose_execution(config, model, self._pool, attention.backend)
        self.load_times = LoadTimes(weights_s=loaded_s - begun_s, kernels_s=time.monotonic() - loaded_s)
        self.description = ModelDescription(
            name=config.name,
            weights=weights,
            mixers=config.network.global_mixers,
            device=config.device,
            dtype=config.dtype,
            attention=attention.name,
            attention_reason=attention.reason,
            execution=fused.name,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            weights_note=None if config.checkpoint is None else file_note(config.checkpoint),
        )
        self._config = config
        self._whole_pages = attention.backend.whole_pages
        self._identity = ModelIdentity.of(config, weights)
        self._model_runner = ModelRunner(model, config, self._pool, attention.backend, fused.steps)
        self._executor = BatchExecutor(self._model_runner, config)
        self._pictures = Pictures(self._device)
        self._streams: dict[str, Stream] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop all streams. Idempotent."""
        for camera in list(self._streams):
            self.close_stream(camera)

    def statistics(self) -> EngineStatistics:
        """Counts and memory; takes no time worth speaking of."""
        return replace(
            self._executor.counts, streams=tuple(stream_statistics(stream) for stream in self._streams.values())
        )

    def open_stream(self, camera: str, stream: StreamConfig, resize: ResizeMode) -> None:
        """Begin a stream. Its memory is allocated at its first step, which shows how large its pictures are.

        Raises:
            AdmissionError: `max_streams` are open.
            ValueError: the camera has a stream already.
        """
        if camera in self._streams:
            raise ValueError(f"camera {camera!r} already has a stream")
        stream = self._possible(stream)
        check_admission(camera, stream, len(self._streams), self._config, self._pool)
        self._streams[camera] = Stream(camera, stream, resize)

    def close_stream(self, camera: str) -> None:
        """Drop a stream with its memory. Call `flush` first: frames that still wait give nothing. Idempotent."""
        stream = self._streams.pop(camera, None)
        if stream is not None:
            stream.free()

    def renew_stream(self, camera: str) -> bool:
        """End a stream's epoch, so that its next frame begins a new one: its first frames showed nothing of use.

        With `epoch_frames` the new epoch begins as after any other, with the stream's last `scale_frames` frames: the
        next record has the flag `reset`, no frame waits and none comes twice. Without, nothing is remembered any more:
        the next `scale_frames` frames are gathered as a new stream's are. Nothing runs before the next frame comes.

        Returns:
            whether there was an epoch to end; not where nothing is remembered yet: frames that wait for the rest of the
            first block go on waiting.

        Raises:
            ValueError: the camera has no stream.
        """
        return self._open(camera).end()

    @torch.inference_mode()
    def save_state(self, camera: str, path: Path, *, deadline_s: float | None = None) -> None:
        """Write all that a stream remembers to a safetensors file, whole or not at all; the stream goes on as before.

        Args:
            camera: whose stream.
            path: where, in a folder that exists; what stands there is replaced.
            deadline_s: `time.monotonic()` at which to give up, or None.

        Raises:
            StateError: it remembers nothing yet, frames of it wait (see `flush`), or it cannot be written by then.
            ValueError: the camera has no stream.
        """
        save_stream(self._open(camera), self._identity, path, deadline_s)

    @torch.inference_mode()
    def load_state(self, camera: str, path: Path) -> SavedStream:
        """Let an open stream go on from a file, to the bit on the same device, in the file's epoch and frame number.

        What it remembered or had waiting is dropped. Its next frame goes on if its size is that of the file's frames,
        whatever connection of its source it comes from; else it begins a new epoch.

        Returns:
            what the file says of itself.

        Raises:
            StateError: the file cannot be read, or is of another model, configuration or size; the message says what
                differs. The stream is as it was; it remembers nothing where a number in the file was changed.
            AdmissionError: there is no room for it. The stream remembers nothing then.
            DeviceError: the device failed.
            ValueError: the camera has no stream.
        """
        try:
            return load_stream(self._open(camera), self._identity, self._pool, self._config.image_width, path)
        except (RuntimeError, MemoryError) as error:  # torch's
            self._executor.check(error)
            if is_out_of_memory(error):
                raise AdmissionError(f"no memory to go on from {path}: {error}") from error
            raise

    @torch.inference_mode()
    def flush(self, camera: str) -> list[Outcome]:
        """Run the frames of a stream that wait for more: they become its scale frames, fewer than configured.

        Returns:
            their features, or failures; nothing where none wait or the camera has no stream.

        Raises:
            DeviceError: see `step`.
        """
        stream = self._streams.get(camera)
        if stream is None:
            return []
        return [outcome for part in self._release(stream, time.monotonic_ns()) for outcome in part.outcomes]

    @torch.inference_mode()
    def prepare(self, frames: Sequence[Frame]) -> None:
        """Fit the pictures of frames that the next step may have, so that it begins sooner.

        They are kept on the device until the next call. What cannot be fitted is left to the step, which tells why.
        """
        fits: list[tuple[Frame, ResizeGeometry]] = []
        for frame in frames:
            stream = self._streams.get(frame.stamp.camera)
            if stream is not None:
                with suppress(ValueError):
                    fits.append((frame, self._geometry(frame.stamp.source_size, stream.resize)))
        self._pictures.prepare(fits)

    def step(self, frames: Sequence[Frame], while_device_busy: WhileDeviceBusy | None = None) -> list[Outcome]:
        """`step_outputs`, all parts together."""
        return [outcome for part in self.step_outputs(frames, while_device_busy) for outcome in part.outcomes]

    @torch.inference_mode()
    def step_outputs(
        self, frames: Sequence[Frame], while_device_busy: WhileDeviceBusy | None = None
    ) -> Iterator[StepOutput]:
        """Take frames, of each camera one or some that follow each other, and give what is ready.

        Pictures that have the same size in the model run in one forward, whatever the age of their streams, at most
        `max_batch` frames at a time (a stream's first block stays whole, and so do the up to `run_frames` frames of a
        stream that run together, with the numbers of one by one). A frame cannot be used (too thin, wrong
        shape, no stream): it fails alone. There is no room for a stream's memory: its frames fail, and it tries again
        with the next. A forward fails: its frames fail, its streams start anew. A frame gives non-finite numbers: they
        are given, flagged, and its stream starts anew (frames just before it that run with it may be spoilt, too, where
        `kda` blocks run). A frame has another size, or comes from a source that was opened anew: its stream starts
        anew, and frames that still waited are run before. A stream's epoch is over (see `renew_stream`, too): a new one
        begins with its last frames, which run once more before this frame and are not given again.

        Args:
            frames: what to take.
            while_device_busy: called while a GPU runs the step's last forward pass and this thread would only wait, so
                never on a CPU. It may call `prepare`.

        Yields:
            features and failures, those of a forward as soon as they are there; to be asked for to the end. A camera's
            features come in the order of its frames: none yet for a frame that waits for the rest of its stream's first
            block, and those of the whole block with its last frame.

        Raises:
            DeviceError: the device itself failed; the engine must not be used any more.
        """
        started_ns = time.monotonic_ns()
        runs: dict[str, deque[Frame]] = {}
        for frame in frames:
            runs.setdefault(frame.stamp.camera, deque()).append(frame)
        while any(runs.values()):
            yield from self._round([run for run in runs.values() if run], started_ns, while_device_busy)

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
        fits = {
            geometry.model_size: geometry
            for size in sizes
            for geometry in (self._geometry(size, mode) for mode in sorted(modes))
        }
        for geometry in fits.values():
            self._rehearse(geometry)

    def _round(
        self, runs: Sequence[deque[Frame]], started_ns: int, while_device_busy: WhileDeviceBusy | None
    ) -> Iterator[StepOutput]:
        # One forward of each camera at most; takes the frames that go into it from their runs.
        streams: list[Stream] = []
        for run in runs:
            stream = self._streams.get(run[0].stamp.camera)
            if stream is not None:
                streams.append(stream)
            while run and not (stream is not None and stream.full):
                yield from self._admit(run.popleft(), started_ns)
        renewal_ns = time.monotonic_ns()
        self._executor.renew([stream for stream in streams if stream.over and stream.waiting], started_ns)
        started_ns += time.monotonic_ns() - renewal_ns  # the step's frames wait for it, as in the queue
        ready = [FrameChunk(stream, stream.take()) for stream in streams if stream.ready]
        yield from self._executor.run(ready, started_ns, last=not any(runs), while_device_busy=while_device_busy)

    def _possible(self, stream: StreamConfig) -> StreamConfig:
        if not self._config.running_mixers:
            return MEMORYLESS
        # Runs would make the history go round in its places, unless epochs end before it is full.
        endless = self._whole_pages and stream.retention.cross_frame_special and not stream.epoch_frames
        return replace(stream, run_frames=1) if endless else stream

    def _open(self, camera: str) -> Stream:
        if camera not in self._streams:
            raise ValueError(f"camera {camera!r} has no stream")
        return self._streams[camera]

    def _rehearse(self, geometry: ResizeGeometry) -> None:
        stream = Stream("warm-up", StreamConfig(scale_frames=1, window=1, history_frames=1), ResizeMode.CROP)
        stamp = FrameStamp(stream.camera, 0, 0, 0, 0, None, geometry.source_size)
        width, height = geometry.source_size
        blank = np.zeros((height, width, 3), np.uint8)
        try:
            for _ in range(2):
                stream.add(stamp, self._pictures.make(blank, geometry), geometry, preprocess_us=0)
                self._executor.rehearse(FrameChunk(stream, stream.take()))
        finally:
            stream.free()

    def _admit(self, frame: Frame, started_ns: int) -> Iterator[StepOutput]:
        # Lets the frame wait in its stream. Gives its own failure, or what waited before it and cannot wait for more.
        stamp, begun_ns = frame.stamp, time.monotonic_ns()
        stream = self._streams.get(stamp.camera)
        if stream is None:
            yield StepOutput(self._executor.fail([stamp], "its camera has no stream"))
            return
        try:
            geometry = self._geometry(stamp.source_size, stream.resize)
            image = self._pictures.of(frame, geometry)
        except (ValueError, RuntimeError) as error:  # RuntimeError: torch's, of which out of memory is one
            yield StepOutput(self._executor.failed([stamp], error))
            return
        preprocess_us = (time.monotonic_ns() - begun_ns) // 1000
        if stream.breaks_with(stamp):
            yield from self._release(stream, started_ns)
            stream.restart()
        stream.add(stamp, image, geometry, preprocess_us)

    def _geometry(self, size: Size, mode: ResizeMode) -> ResizeGeometry:
        return resize_geometry(size, mode, self._config.image_width, self._config.network.patch_size)

    def _release(self, stream: Stream, started_ns: int) -> Iterator[StepOutput]:
        if stream.waiting:
            yield from self._executor.run([FrameChunk(stream, stream.take())], started_ns)


def _check(config: ModelConfig) -> None:
    layers, depth, patch_size = config.output.layers, config.network.depth, config.network.patch_size
    last = max(depth, 1) - 1
    if not layers or list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] <= last:
        raise ValueError(f"output.layers are ascending numbers from 0 to {last}, got {list(layers)}")
    if not depth and not PATCH_GROUPS.issuperset(config.output.tokens):
        raise ValueError(f"a network of depth 0 gives patch and pooled tokens only, not {list(config.output.tokens)}")
    if not config.output.tokens or len(set(config.output.tokens)) < len(config.output.tokens):
        raise ValueError(f"output.tokens are distinct groups, at least one, got {list(config.output.tokens)}")
    if config.output.pool < 1 or config.max_batch < 1:
        raise ValueError(f"output.pool and max_batch are at least 1, got {config.output.pool} and {config.max_batch}")
    if config.image_width < patch_size or config.image_width % patch_size:
        raise ValueError(f"image_width is a multiple of the patch size {patch_size}, got {config.image_width}")
