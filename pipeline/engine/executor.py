"""Runs chunks in batches. Every frame has an outcome, either features or a failure; no stream is left half written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..config import ModelConfig
from ..errors import ModelError
from ..frames import Features, Flag, FrameFailure, FrameStamp, Outcome
from .device_faults import DeviceFaults
from .model_runner import Batch, FrameChunk, ModelRunner, WhileDeviceBusy, batches
from .statistics import EngineStatistics
from .stream import Stream
from .window_poses import encode_windows


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The results of one forward pass, or failures outside of one.

    Attributes:
        outcomes: features of one forward pass, or failures.
        last: whether the results are those of the step's last forward pass. If all frames of a step fail or wait, it
            has no forward pass.
    """

    outcomes: list[Outcome]
    last: bool = False


class BatchExecutor:
    """Runs chunks in batches, and resets streams whose batch failed or whose numbers are not finite.

    Every method raises DeviceError where the device itself failed, or where runs keep failing (see `DeviceFaults`).

    Attributes:
        counts: counters of what was run so far, without statistics of the streams.

    Args:
        model_runner: runs a batch.
        config: the model's configuration.
    """

    def __init__(self, model_runner: ModelRunner, config: ModelConfig) -> None:
        self.counts = EngineStatistics()
        self._model_runner = model_runner
        self._config = config
        self._faults = DeviceFaults(config.device)

    def run(
        self,
        chunks: Sequence[FrameChunk],
        started_ns: int,
        *,
        last: bool = False,
        while_device_busy: WhileDeviceBusy | None = None,
    ) -> Iterator[StepOutput]:
        """Run chunks of different streams. Every frame has an outcome.

        Args:
            chunks: frames taken from their streams.
            started_ns: monotonic time at which the step began.
            last: whether these are the step's last chunks.
            while_device_busy: see `ModelRunner.run`; called for the step's last batch only.
        """
        prepared: list[FrameChunk] = []
        for chunk in chunks:
            try:
                self._model_runner.prepare(chunk)
            except (ModelError, RuntimeError) as error:
                chunk.stream.restart()
                yield StepOutput(self.fail_with([frame.stamp for frame in chunk.frames], error))
            else:
                prepared.append(chunk)
        planned = list(batches(prepared, self._config.max_batch))
        for batch in planned:
            is_last = last and batch is planned[-1]
            yield StepOutput(self._run(batch, started_ns, while_device_busy if is_last else None), is_last)

    def renew(self, streams: Sequence[Stream], started_ns: int) -> None:
        """Begin new epochs from the streams' last frames. If that fails, epochs begin empty, with the next frame."""
        chunks = [FrameChunk(stream, stream.renew()) for stream in streams]
        for batch in batches(chunks, self._config.max_batch):
            try:
                features = self._advance(batch, started_ns, None)
                for stream, records in _by_stream(batch, features):
                    stream.trajectory.begin_epoch(records)
                _restart_spoilt(batch, features)
            except Exception as error:  # whatever failed, later frames must not be lost
                self._faults.run_failed(error)

    def warm_up(self, chunk: FrameChunk) -> None:
        """Run a chunk without counting it.

        Raises:
            RuntimeError: the original error, unchanged.
        """
        try:
            self._model_runner.prepare(chunk)
            self._model_runner.run((chunk,), started_ns=0)
        except RuntimeError as error:
            self._faults.check(error)
            raise

    def check(self, error: Exception) -> None:
        """Report an error that did not occur in a run of the model, see `DeviceFaults.check`."""
        self._faults.check(error)

    def fail_with(self, stamps: Sequence[FrameStamp], error: Exception) -> list[Outcome]:
        """Return failures of frames whose error did not occur in a run of the model."""
        self.check(error)
        return self.fail(stamps, _reason(error))

    def fail(self, stamps: Sequence[FrameStamp], reason: str) -> list[Outcome]:
        """Return failures of frames, with the given reason, and count them."""
        self.counts = self.counts.plus(failures=len(stamps))
        return [FrameFailure(stamp, reason) for stamp in stamps]

    def _run(self, batch: Batch, started_ns: int, while_device_busy: WhileDeviceBusy | None) -> list[Outcome]:
        try:
            features = self._advance(batch, started_ns, while_device_busy)
            published = [
                stream.trajectory.publish(record)
                for stream, records in _by_stream(batch, features)
                for record in records
            ]
            _restart_spoilt(batch, features)
        except Exception as error:  # whatever failed, no frame may be lost
            self._faults.run_failed(error)
            return self.fail([frame.stamp for chunk in batch for frame in chunk.frames], _reason(error))
        spoilt = sum(Flag.NAN in record.flags for record in features)
        self.counts = self.counts.plus(features=len(features), nan_frames=spoilt)
        return list(published)

    def _advance(self, batch: Batch, started_ns: int, while_device_busy: WhileDeviceBusy | None) -> list[Features]:
        try:
            given = self._model_runner.run(batch, started_ns, while_device_busy)
            features = [
                record
                for stream, records in _by_stream(batch, given)
                for record in encode_windows(records, stream.online)
            ]
        except Exception:
            _restart(batch, {chunk.stream.camera for chunk in batch})
            raise
        features = [stream.observe(record) for stream, records in _by_stream(batch, features) for record in records]
        # A successful first block says nothing about later frames: if these always fail, every failure is followed by a
        # first block.
        if not all(Flag.WARMUP in record.flags for record in features):
            self._faults.run_succeeded()
        self.counts = self.counts.plus(forwards=1)
        return features


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _by_stream(batch: Batch, features: Sequence[Features]) -> Iterator[tuple[Stream, Sequence[Features]]]:
    # Each stream of a batch with its records; the records are in the order of the batch.
    start = 0
    for chunk in batch:
        stop = start + len(chunk.frames)
        yield chunk.stream, features[start:stop]
        start = stop


def _restart_spoilt(batch: Batch, features: Sequence[Features]) -> None:
    _restart(batch, {record.stamp.camera for record in features if Flag.NAN in record.flags})


def _restart(batch: Batch, cameras: set[str]) -> None:
    for chunk in batch:
        if chunk.stream.camera in cameras:
            chunk.stream.restart()
