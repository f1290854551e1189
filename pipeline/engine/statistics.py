"""The engine's description, load times, counters and memory use, as plain values."""

from dataclasses import dataclass, replace

from .stream import Stream


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The model that runs, and how.

    Attributes:
        name: the preset's name.
        weights: `sha256:<hex>` of the file, `random:<seed>`, or both joined by a plus.
        mixers: how the global blocks mix tokens over time, one word a layer pair.
        device, dtype: where and in which number format it computes.
        attention: the attention backend.
        attention_reason: why it was chosen, if the config left the choice; else None.
        execution: how the network runs: `plain`, `fused` or `captured`.
        parameters: numbers in its weights.
        weights_note: a note in the weights' file that users should see, or None.
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
        kernels_s: seconds to load or compile the attention kernels, and to try them.
        frame_s: seconds of a warm forward pass of one frame, of the slowest size; 0 before the warm-up.
    """

    weights_s: float
    kernels_s: float
    frame_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """One stream's memory.

    Attributes:
        camera: the stream's name.
        epoch: number of its memory, which is the number of resets so far.
        frames: frames in this epoch so far, including those of the previous epoch with which it began.
        keyframes: those of them that entered the memory.
        history_dropped: evicted frames of which no token is attended to any more.
        waiting: frames that wait for the stream's first step (counted in `frames`).
        nbytes: bytes of its memory.
        recent_nbytes: bytes of the images kept for the next epoch.
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
    """Counts since the engine was loaded, and its streams now.

    Attributes:
        forwards: forward passes.
        features: frames that resulted in features.
        failures: frames that failed.
        nan_frames: frames with non-finite numbers (counted in `features`).
        streams: the open streams.
    """

    forwards: int = 0
    features: int = 0
    failures: int = 0
    nan_frames: int = 0
    streams: tuple[StreamStatistics, ...] = ()

    def plus(
        self, *, forwards: int = 0, features: int = 0, failures: int = 0, nan_frames: int = 0
    ) -> "EngineStatistics":
        """These counts plus others."""
        return replace(
            self,
            forwards=self.forwards + forwards,
            features=self.features + features,
            failures=self.failures + failures,
            nan_frames=self.nan_frames + nan_frames,
        )


def stream_statistics(stream: Stream) -> StreamStatistics:
    """The present statistics of a stream."""
    window = None if stream.state is None else stream.state.window
    return StreamStatistics(
        camera=stream.camera,
        epoch=stream.epoch,
        frames=stream.next_frame + len(stream.waiting),
        keyframes=0 if window is None else window.committed,
        history_dropped=0 if window is None else window.evicted - window.remembered,
        waiting=len(stream.waiting),
        nbytes=0 if stream.state is None else stream.state.nbytes,
        recent_nbytes=stream.recent.nbytes,
    )
