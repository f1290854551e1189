"""The engine: owns the weights and every stream's memory, and turns frames into features. Used by one thread.

The first `scale_frames` frames of a stream attend to each other in both directions. So their features are returned
together, once the last of these frames has arrived (flag `warmup`). Every frame results in exactly one outcome: either
features or a failure.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import torch

from ..cache.backends.select import choose_backend
from ..cache.kv_pool import KVCachePool
from ..config import Crop, ModelConfig, ResizeMode, StreamConfig
from ..errors import AdmissionError, QueryError, StateError
from ..frames import MAP_KINDS, PATCH_GROUPS, Features, Frame, Outcome, OutputKind, Pixels, Size, TokenGroup
from ..model.checkpoint import load_model
from ..model.devices import is_out_of_memory
from ..model.weight_files import file_note
from ..view_config import ViewConfig
from .admission import memory_limit, pool_shape, pose_pool_shape
from .checkpoint import ModelIdentity, SavedStream, load_stream, save_stream
from .execution import choose_execution
from .executor import BatchExecutor, StepOutput
from .heads import make_heads
from .images import ImagePreprocessor
from .model_runner import ModelRunner, WhileDeviceBusy
from .preprocess import resize_geometry
from .query import QueryRunner
from .statistics import EngineStatistics, LoadTimes, ModelDescription, StreamStatistics, stream_statistics
from .stepper import OnPass, Stepper, ignore_pass
from .streams import StreamRegistry

__all__ = ["Engine", "EngineStatistics", "ModelDescription", "Outcome", "StreamStatistics"]


class Engine:
    """Loads the model and runs it. A context manager: leaving it frees the streams' memory.

    The model's device becomes the current device of the thread, because Triton and CUDA graph capture work only there.

    Attributes:
        description: which model runs, and how.
        load_times: how long loading took.
        model_runner, executor, preprocessor, pool, pose_pool, streams: the parts of the engine.

    Raises:
        ModelError: the checkpoint or the device cannot be used.
        ValueError: the config is invalid.
    """

    def __init__(self, config: ModelConfig) -> None:
        _check(config)
        begun_s = time.monotonic()
        device = torch.device(config.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        model, weights = load_model(config)
        shape, heads, limit = pool_shape(config), make_heads(config, model), memory_limit(device)
        self.pool = KVCachePool(shape, limit)
        self.pose_pool = KVCachePool(pose_pool_shape(config), limit, beside=self.pool)
        loaded_s = time.monotonic()
        attention = choose_backend(config, shape)
        execution = choose_execution(config, model, heads, self.pool, self.pose_pool, attention.backend)
        self.load_times = LoadTimes(weights_s=loaded_s - begun_s, kernels_s=time.monotonic() - loaded_s)
        self.description = ModelDescription(
            name=config.name,
            weights=weights,
            mixers=config.network.global_mixers,
            device=config.device,
            dtype=config.dtype,
            attention=attention.name,
            attention_reason=attention.reason,
            execution=execution.name,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            weights_note=None if config.checkpoint is None else file_note(config.checkpoint),
        )
        self._config = config
        self._identity = ModelIdentity.of(config, weights)
        pools = self.pool, self.pose_pool
        self.model_runner = ModelRunner(model, config, heads, pools, attention.backend, execution.graphs)
        self.executor = BatchExecutor(self.model_runner, config)
        self.preprocessor = ImagePreprocessor(device)
        self.streams = StreamRegistry(config, self.pool, whole_pages=attention.backend.whole_pages)
        geometry_of = partial(resize_geometry, image_width=config.image_width, patch_size=config.network.patch_size)
        self._stepper = Stepper(self.streams, self.preprocessor, self.executor, geometry_of)
        self._queries = QueryRunner(self.model_runner, self.preprocessor, pools, geometry_of)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all streams. Idempotent."""
        for stream in self.streams:
            self.close_stream(stream.camera)

    def statistics(self) -> EngineStatistics:
        """Counters and memory use. Cheap, so it may be called often."""
        return replace(self.executor.counts, streams=tuple(map(stream_statistics, self.streams)))

    def open_stream(
        self,
        camera: str,
        stream: StreamConfig,
        resize: ResizeMode,
        crop: Crop | None = None,
        outputs: Collection[OutputKind] | None = None,
        known: ViewConfig | None = None,
    ) -> None:
        """Open a stream. Its memory is allocated at its first step, when the image size is known.

        Args:
            camera: the camera's name.
            stream: the stream's settings.
            resize: how frames are fitted to the model's image size.
            crop: the part of the captured frames that the frames are; a saved memory of another part is not restored.
            outputs: the kinds of outputs to publish, all among the model's; None for all of the model's.
            known: what is known of the camera's view; None for nothing.

        Raises:
            AdmissionError: `max_streams` are open, or an output is not one of the model's.
            ValueError: the camera already has a stream.
        """
        self.streams.open(camera, stream, resize, crop, outputs, known)

    def close_stream(self, camera: str) -> None:
        """Drop a stream and its memory. Call `flush` first, or frames that still wait are lost. Idempotent."""
        self.streams.close(camera)
        if not tuple(self.streams):
            self._queries.free()

    def renew_stream(self, camera: str) -> bool:
        """End a stream's epoch, so that its next frame begins a new one, for example if the camera started in the dark.

        With `epoch_frames`, the new epoch begins like any other, with the stream's last `scale_frames` frames: the next
        record has the flag `reset`, no frame waits and none is published twice. Without `epoch_frames`, the memory is
        cleared, and the next `scale_frames` frames are collected as for a new stream. Nothing runs before the next
        frame arrives.

        Returns:
            whether an epoch was ended. False while the first block is still being collected, which then continues.

        Raises:
            ValueError: the camera has no stream.
        """
        return self.streams[camera].end()

    def expect_reconnection(self, camera: str) -> None:
        """Let a stream's memory continue with the next connection of its source, as long as the frames' size stays.

        For a source that is opened again on purpose and shows the same scene. No effect if the camera has no stream.
        """
        stream = self.streams.get(camera)
        if stream is not None:
            stream.reopened = True

    @torch.inference_mode()
    def save_state(self, camera: str, path: Path, *, deadline_s: float | None = None) -> None:
        """Write a stream's memory to a safetensors file, atomically. The stream is unchanged.

        Args:
            camera: name of the camera whose stream is saved.
            path: the file, in an existing folder; replaced if it exists.
            deadline_s: `time.monotonic()` at which to give up, or None for no deadline.

        Raises:
            StateError: the stream's memory is empty or cannot be copied from the device, frames of the stream wait (see
                `flush`), or the file cannot be written in time.
            DeviceError: the device failed.
            ValueError: the camera has no stream.
        """
        try:
            save_stream(self.streams[camera], self._identity, path, deadline_s)
        except (RuntimeError, MemoryError) as error:  # torch's
            self.executor.check(error)
            raise StateError(f"its memory cannot be copied: {error}") from error

    @torch.inference_mode()
    def load_state(self, camera: str, path: Path, *, max_age_s: float | None = None) -> SavedStream:
        """Restore an open stream from a file, bit-exact on the same device, with the file's epoch and frame number.

        The stream's current memory and waiting frames are dropped. The next frame continues the epoch if it has the
        size of the saved frames, whatever connection of its source it comes from; otherwise it begins a new epoch.

        Args:
            camera: name of the camera whose stream is restored.
            path: the file.
            max_age_s: maximum age of the memory in the file, in seconds, or None for any age.

        Returns:
            the file's header.

        Raises:
            StateError: the file cannot be read, is too old, or is for another model, config or image size; the message
                says what differs. The stream is unchanged, but if the file's tensors are damaged, it is empty
                afterwards.
            AdmissionError: there is not enough memory for the stream. The stream is empty afterwards.
            DeviceError: the device failed.
            ValueError: the camera has no stream.
        """
        try:
            stream, width = self.streams[camera], self._config.image_width
            pools = self.pool, self.pose_pool
            return load_stream(stream, self._identity, pools, width, path, max_age_s)
        except (RuntimeError, MemoryError) as error:  # torch's
            self.executor.check(error)
            if is_out_of_memory(error):
                raise AdmissionError(f"not enough memory to restore a stream from {path}: {error}") from error
            raise

    @torch.inference_mode()
    def flush(self, camera: str) -> list[Outcome]:
        """Run a stream's waiting frames. They become its scale frames, which are then fewer than configured.

        Returns:
            features or failures of these frames; empty if no frames wait or the camera has no stream.

        Raises:
            DeviceError: the device failed.
        """
        stream = self.streams.get(camera)
        return [] if stream is None else self._stepper.flush(stream)

    def flush_connection(self, camera: str, stream_epoch: int) -> list[Outcome]:
        """Run a stream's waiting frames like `flush`, if the last one came from this connection of its source.

        To be called when a connection is over: no further frames will complete its first block, since the next
        connection begins anew.
        """
        stream = self.streams.get(camera)
        is_latest = stream is not None and stream.last is not None and stream.last[0].stream_epoch == stream_epoch
        return self.flush(camera) if is_latest else []

    @torch.inference_mode()
    def locate(self, camera: str, pixels: Pixels) -> Features:
        """Find where a picture was taken, from what a stream remembers now. The stream's next outputs are unchanged.

        The picture attends to the memory like a frame that does not enter it. It may be from any camera; the middle is
        used if its shape differs from the stream's frames.

        Args:
            camera: name of the camera whose stream is asked.
            pixels: uint8 [height, width, 3], BGR.

        Returns:
            the picture's pose, and its depth if the stream publishes depth, in the frame of reference and unit of the
            stream's records. `to_source` maps to the pixels of the picture.

        Raises:
            QueryError: the camera has no stream, publishes no poses or remembers nothing yet; the picture cannot be
                fitted; or there is no memory for one more frame.
            DeviceError: the device failed.
        """
        stream = self.streams.get(camera)
        if stream is None:
            raise QueryError(f"no camera with a stream is named {camera!r}; there are {self._names()}")
        try:
            return self._queries.locate(stream, pixels)
        except AdmissionError as error:
            raise QueryError(f"there is no room for the picture: {error}") from error
        except (RuntimeError, MemoryError) as error:  # torch's
            self.executor.check(error)
            raise QueryError(f"the picture could not be run: {error}") from error

    def _names(self) -> str:
        return ", ".join(stream.camera for stream in self.streams) or "none"

    @torch.inference_mode()
    def prepare(self, frames: Sequence[Frame]) -> None:
        """Preprocess the images of frames that the next step may take, so that the step begins sooner.

        The images stay on the device until the next call. Frames that cannot be preprocessed are left to the step,
        which reports the reason.
        """
        self._stepper.prepare(frames)

    def step(self, frames: Sequence[Frame], while_device_busy: WhileDeviceBusy | None = None) -> list[Outcome]:
        """Run `step_outputs` and return all outcomes together."""
        return [outcome for result in self.step_outputs(frames, while_device_busy) for outcome in result.outcomes]

    @torch.inference_mode()
    def step_outputs(
        self, frames: Sequence[Frame], while_device_busy: WhileDeviceBusy | None = None
    ) -> Iterator[StepOutput]:
        """Take frames, one or more consecutive ones of each camera, and yield the results as they become available.

        Images of one model size share a forward pass, however old their streams are, with at most `max_batch` frames
        per pass. A stream's first block is never split. Nor are a stream's later frames that run together, at most
        `run_frames`; their results are the same as one by one.

        * If a frame is unusable (too thin, wrong shape, no stream), only this frame fails.
        * If there is no room for a stream's memory, its frames fail, and the next frame tries again.
        * If a forward pass fails, its frames fail, and its streams are reset.
        * If a frame's numbers are not finite, its features are published with the flag `nan`, and its stream is reset.
          Where `kda` blocks run, frames just before it in the same pass may be affected too.
        * If the image size changes or the source was reconnected, waiting frames are run, then the stream is reset.
        * If a stream's epoch is over (see also `renew_stream`), a new one begins with the stream's last frames, which
          run again before the new frame and are not published twice.

        Args:
            frames: the frames to take.
            while_device_busy: called while a GPU runs the step's last forward pass and this thread would only wait;
                never called on a CPU. It may call `prepare`.

        Yields:
            features and failures of each forward pass as soon as it is done; iterate until exhausted. A camera's
            features are in the order of its frames. A frame that waits for the rest of its stream's first block has no
            result yet; the results of the whole block are returned once its last frame has arrived.

        Raises:
            DeviceError: the device failed; the engine must not be used any more.
        """
        yield from self._stepper.step(frames, while_device_busy)

    @torch.inference_mode()
    def warm_up(self, sizes: Sequence[Size], on_pass: OnPass = ignore_pass) -> None:
        """Run the model on each source size, as a first and as a later frame, so that the first real step is fast.

        The time that a forward pass takes after the warm-up is stored in `load_times`.

        Args:
            sizes: width and height of the cameras' frames. Each size is cropped or padded in all ways that the open
                streams ask for, or cropped if there are no streams.
            on_pass: called after each forward pass.

        Raises:
            ValueError: images of such a size cannot be fitted to the model.
            DeviceError: the device failed.
            torch.OutOfMemoryError: the device has not enough memory for one frame.
        """
        self.load_times = replace(
            self.load_times, frame_s=self._stepper.warm_up(sizes, frozenset(self._config.outputs), on_pass)
        )


def _check(config: ModelConfig) -> None:
    _check_outputs(config)
    layers, depth, patch_size = config.output.layers, config.network.depth, config.network.patch_size
    last = max(depth, 1) - 1
    if not layers or list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] <= last:
        raise ValueError(f"output.layers must be ascending numbers from 0 to {last}, got {list(layers)}")
    if not depth and not PATCH_GROUPS.issuperset(config.output.tokens):
        raise ValueError(f"a network of depth 0 has patch and pooled tokens only, not {list(config.output.tokens)}")
    if not config.output.tokens or len(set(config.output.tokens)) < len(config.output.tokens):
        raise ValueError(f"output.tokens must be distinct groups, at least one, got {list(config.output.tokens)}")
    absent = () if config.network.horizon is None else (TokenGroup.CAMERA, TokenGroup.REGISTERS)
    if OutputKind.FEATURES in config.outputs and set(absent).intersection(config.output.tokens):
        raise ValueError(f"this network has no camera and register tokens, got {list(config.output.tokens)}")
    if config.output.pool < 1 or config.max_batch < 1:
        raise ValueError(
            f"output.pool and max_batch must be at least 1, got {config.output.pool} and {config.max_batch}"
        )
    if config.image_width < patch_size or config.image_width % patch_size:
        raise ValueError(f"image_width must be a multiple of the patch size {patch_size}, got {config.image_width}")


def _check_outputs(config: ModelConfig) -> None:
    outputs, network = config.outputs, config.network
    if not outputs or len(set(outputs)) < len(outputs):
        raise ValueError(f"outputs must be distinct kinds, at least one, got {list(outputs)}")
    if not network.depth and set(outputs) != {OutputKind.FEATURES}:
        raise ValueError(f"a network of depth 0 has features only, not {list(outputs)}")
    deepest = network.dense_head.layers[-1]
    if MAP_KINDS.intersection(outputs) and deepest >= network.depth:
        raise ValueError(f"depth and points need layer {deepest}, but the network has {network.depth} layers")
    if config.output.map_stride < 1 or config.output.map_every < 1:
        raise ValueError(
            f"map_stride and map_every must be at least 1, got {config.output.map_stride} and {config.output.map_every}"
        )
