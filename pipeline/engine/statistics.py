"""What the engine says of itself: what runs, what it has done, and what its streams remember."""

from dataclasses import dataclass, replace

from .stream import Stream


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What runs.

    Attributes:
        name: the preset's name.
        weights: `sha256:<hex>` of the file, `random:<seed>`, or both with a plus between.
        mixers: how the global blocks mix tokens over time, one word a layer pair.
        device, dtype: where and in which number format it computes.
        attention: the attention backend.
        attention_reason: why it was taken, where the config left the choice; else None.
        execution: how the network runs: `plain`, `fused` or `captured`.
        parameters: numbers in its weights.
        weights_note: what their file says must be known of them, or None.
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
    """How long an engine took to make.

    Attributes:
        weights_s: seconds for the model and its weights, on a device that is opened for that.
        kernels_s: seconds for attention's kernels: loaded, or compiled, and tried.
    """

    weights_s: float
    kernels_s: float


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """One stream's memory.

    Attributes:
        camera: the stream's name.
        epoch: number of its memory; the memory was restarted so many times.
        frames: frames in this epoch so far, those of the epoch before that it began with included.
        keyframes: those of them that entered the memory.
        history_dropped: evicted frames of which nothing is attended to any more.
        waiting: frames that wait for the stream's first step (among `frames`).
        nbytes: bytes of its memory.
        recent_nbytes: bytes of the pictures kept for the next epoch.
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

    def plus(
        self, *, forwards: int = 0, features: int = 0, failures: int = 0, nan_frames: int = 0
    ) -> "EngineStatistics":
        """The counts with more added."""
        return replace(
            self,
            forwards=self.forwards + forwards,
            features=self.features + features,
            failures=self.failures + failures,
            nan_frames=self.nan_frames + nan_frames,
        )


def stream_statistics(stream: Stream) -> StreamStatistics:
    """What one stream remembers now."""
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
