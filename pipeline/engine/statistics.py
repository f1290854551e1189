"""The engine's description, load times, counters and memory use, as plain values."""

from dataclasses import dataclass, replace

from .stream import Stream


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Which model runs, and how.

    Attributes:
        name: the preset's name.
        weights: name of the weights: `sha256:<hex>` of their file, `random:<seed>`, or both joined by a plus.
        mixers: how the global blocks mix tokens over time, one word per layer pair.
        device, dtype: device and number format of the model's computations.
        attention: the attention backend.
        attention_reason: why this backend was chosen, if the config left the choice open; else None.
        execution: how the network runs: `plain`, `fused` or `captured`.
        parameters: number of parameters in the weights.
        weights_note: a note in the file with the weights that users should see, or None.
    """

    name: str
    weights: str
    mixers: tuple[str, ...]
    device: str
    dtype: str
    attention: str
    attention_reason: str | None
    execution: str
    parameters: int
    weights_note: str | None = None


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """How long an engine took to load.

    Attributes:
        weights_s: seconds to open the device and load the model's weights.
        kernels_s: seconds to load or compile the attention kernels, and to test them.
        frame_s: seconds that a forward pass of one frame takes after the warm-up, for the slowest image size; 0 before
            the warm-up.
    """

    weights_s: float
    kernels_s: float
    frame_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """One stream's memory.

    Attributes:
        camera: name of the stream's camera.
        epoch: number of the epoch, from 0, which is the number of resets so far.
        frames: number of frames in this epoch so far, including frames of the previous epoch with which it began.
        keyframes: number of these frames that entered the memory.
        history_dropped: number of evicted frames whose tokens are not attended to any more.
        waiting: number of frames that wait for the stream's first step (included in `frames`).
        nbytes: size of the stream's memory in bytes.
        recent_nbytes: total size of the images kept for the next epoch, in bytes.
    """

    camera: str
    epoch: int
    frames: int
    keyframes: int
    history_dropped: int
    waiting: int
    nbytes: int
    recent_nbytes: int


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counters since the engine was loaded, and the current statistics of its streams.

    Attributes:
        forwards: number of forward passes.
        features: number of frames that resulted in features.
        failures: number of frames that failed.
        nan_frames: number of frames with non-finite numbers (included in `features`).
        streams: statistics of the open streams.
    """

    forwards: int = 0
    features: int = 0
    failures: int = 0
    nan_frames: int = 0
    streams: tuple[StreamStatistics, ...] = ()

    def plus(
        self, *, forwards: int = 0, features: int = 0, failures: int = 0, nan_frames: int = 0
    ) -> "EngineStatistics":
        """The sum of these counters and the given ones."""
        return replace(
            self,
            forwards=self.forwards + forwards,
            features=self.features + features,
            failures=self.failures + failures,
            nan_frames=self.nan_frames + nan_frames,
        )


def stream_statistics(stream: Stream) -> StreamStatistics:
    """The current statistics of a stream."""
    window = None if stream.state is None else stream.state.window
    return StreamStatistics(
        camera=stream.camera,
        epoch=stream.epoch,
        frames=stream.next_frame + len(stream.waiting),
        keyframes=0 if window is None else window.committed,
        history_dropped=0 if window is None else window.evicted - window.remembered,
        waiting=len(stream.waiting),
        nbytes=sum(memory.nbytes for memory in (stream.state, stream.poses) if memory is not None),
        recent_nbytes=stream.recent.nbytes,
    )
