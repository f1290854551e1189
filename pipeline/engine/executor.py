"""Runs what is ready and says what becomes of each frame: features, or a failure. No stream is left half written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..config import ModelConfig
from ..errors import ModelError
from ..frames import Features, Flag, FrameFailure, FrameStamp, Outcome
from .device_faults import DeviceFaults
from .model_runner import Batch, Forward, Meanwhile, Segment, batches
from .statistics import EngineStatistics
from .stream import Stream


@dataclass(frozen=True, slots=True)
class Part:
    """Outcomes of a step that are there at once.

    Attributes:
        outcomes: features of one forward, or failures.
        last: whether they are of the step's last forward. None need be: all frames may have failed, or wait for more.
    """

    outcomes: list[Outcome]
    last: bool = False


class Runner:
    """Batches segments, runs them, and starts streams anew that fail or whose numbers are not finite.

    Every method raises DeviceError where the device itself failed, or does so again and again (see `DeviceFaults`).

    Attributes:
        counts: what was run so far; without the streams.

    Args:
        forward: runs a batch.
        config: what the model is.
    """

    def __init__(self, forward: Forward, config: ModelConfig) -> None:
        self.counts = EngineStatistics()
        self._forward = forward
        self._config = config
        self._faults = DeviceFaults(config.device)

    def run(
        self,
        segments: Sequence[Segment],
        started_ns: int,
        *,
        last: bool = False,
        meanwhile: Meanwhile | None = None,
    ) -> Iterator[Part]:
        """Run segments of different streams; every frame of them comes out.

        Args:
            segments: frames taken from their streams.
            started_ns: monotonic time at which the step began.
            last: whether they are the step's last ones.
            meanwhile: for the step's last batch, see `Forward.run`.
        """
        prepared: list[Segment] = []
        for segment in segments:
            try:
                self._forward.prepare(segment)
            except (ModelError, RuntimeError) as error:
                segment.stream.restart()
                yield Part(self.failed([frame.stamp for frame in segment.frames], error))
            else:
                prepared.append(segment)
        runs = list(batches(prepared, self._config.max_batch))
        for batch in runs:
            is_last = last and batch is runs[-1]
            yield Part(self._run(batch, started_ns, meanwhile if is_last else None), is_last)

    def renew(self, streams: Sequence[Stream], started_ns: int) -> None:
        """Begin new epochs with the streams' last frames. What fails leaves its streams empty: with the next frame."""
        segments = [Segment(stream, stream.renew()) for stream in streams]
        for batch in batches(segments, self._config.max_batch):
            try:
                self._advance(batch, started_ns, None)
            except Exception as error:  # whatever it was, the frames that come next are not lost
                self._faults.run_failed(error)

    def rehearse(self, segment: Segment) -> None:
        """Run a segment, and count nothing.

        Raises:
            RuntimeError: whatever failed, as it came.
        """
        try:
            self._forward.prepare(segment)
            self._forward.run((segment,), started_ns=0)
        except RuntimeError as error:
            self._faults.check(error)
            raise

    def check(self, error: Exception) -> None:
        """Something was raised, though not by a run of the model; see `DeviceFaults.check`."""
        self._faults.check(error)

    def failed(self, stamps: Sequence[FrameStamp], error: Exception) -> list[Outcome]:
        """Frames for which something was raised, though not by a run of the model."""
        self.check(error)
        return self.fail(stamps, _reason(error))

    def fail(self, stamps: Sequence[FrameStamp], reason: str) -> list[Outcome]:
        """Frames that cannot be used."""
        self.counts = self.counts.plus(failures=len(stamps))
        return [FrameFailure(stamp, reason) for stamp in stamps]

    def _run(self, batch: Batch, started_ns: int, meanwhile: Meanwhile | None) -> list[Outcome]:
        try:
            features = self._advance(batch, started_ns, meanwhile)
        except Exception as error:  # whatever it was, no frame may be lost
            self._faults.run_failed(error)
            return self.fail([frame.stamp for segment in batch for frame in segment.frames], _reason(error))
        spoilt = sum(Flag.NAN in record.flags for record in features)
        self.counts = self.counts.plus(features=len(features), nan_frames=spoilt)
        return list(features)

    def _advance(self, batch: Batch, started_ns: int, meanwhile: Meanwhile | None) -> list[Features]:
        try:
            features = self._forward.run(batch, started_ns, meanwhile)
        except Exception:
            _restart(batch, {segment.stream.camera for segment in batch})
            raise
        # First blocks tell nothing of the runs that follow them: where those fail, each failure is followed by one.
        if not all(Flag.WARMUP in record.flags for record in features):
            self._faults.run_succeeded()
        _restart(batch, {record.stamp.camera for record in features if Flag.NAN in record.flags})
        self.counts = self.counts.plus(forwards=1)
        return features


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _restart(batch: Batch, cameras: set[str]) -> None:
    for segment in batch:
        if segment.stream.camera in cameras:
            segment.stream.restart()
