"""The results of `retinad bench`, with the settings and the machine. They can be saved as JSON and compared later."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
import numpy as np

from retinad.pipeline.config import DType, NetworkConfig, StreamConfig


class BenchError(Exception):
    """A measurement failed, or the report of a measurement cannot be written or read."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of a duration, in milliseconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Self:
        """Compute the percentiles of one or more measurements."""
        return cls(*(round(float(value), 3) for value in np.percentile(milliseconds, (50, 95, 99))))


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model runs, and how.

    Attributes:
        model: name of the preset.
        weights: name of the weights; `random:<seed>` if they are random.
        device: `cpu` or `cuda:<n>`.
        dtype: number format of the model's computations.
        attention: attention backend.
        mixers: for each global block, how it mixes tokens over time.
        network: the network's shape.
        image_width: width of the model's input images in pixels.
        max_batch: maximum number of frames in one forward pass.
    """

    model: str
    weights: str
    device: str
    dtype: DType
    attention: str
    mixers: tuple[str, ...]
    network: NetworkConfig
    image_width: int
    max_batch: int


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """Which features are published; see `OutputConfig`."""

    layers: tuple[int, ...]
    tokens: tuple[str, ...]
    output_dtype: DType


@dataclass(frozen=True, slots=True)
class Workload:
    """The streams and frames that were run.

    Attributes:
        cameras: number of streams, each of which has one frame in every step.
        size: width and height of the cameras' frames.
        steps: number of measured steps, and number of frames that each camera sends once its stream is full.
        window_full: whether the streams' windows were full before the measurement.
        stream: memory settings of each stream.
        fps: requested frames per second of each camera, or None to derive the rate from the engine's speed (at most
            30).
    """

    cameras: int
    size: tuple[int, int]
    steps: int
    window_full: bool
    stream: StreamConfig
    fps: float | None


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """The settings of a run. Two runs are comparable if their settings are equal."""

    model: ModelSettings
    output: OutputSettings
    workload: Workload


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the software versions.

    Attributes:
        versions: versions of retinad and its libraries, by name.
        cpu, cores: name of the processor, and number of its cores that this process may use.
        gpu, driver: name of the GPU and version of its driver, or None on a CPU.
    """

    versions: Mapping[str, str]
    cpu: str
    cores: int
    gpu: str | None
    driver: str | None


@dataclass(frozen=True, slots=True)
class EngineResult:
    """The results of the engine alone: one frame per stream in every step, one step after the other.

    Attributes:
        fill_steps: number of steps that filled the streams before the measurement.
        steps: number of measured steps.
        step_ms: wall time of a step, from images in host memory to features in host memory.
        steps_per_s, frames_per_s: rates over all measured steps.
        gpu_busy: share of the median step in which kernels or copies ran, or None on a CPU.
        epochs_begun: number of epochs that began during the measurement, in all streams together. A stream's memory is
            not full for a while after a new epoch has begun.
        state_bytes: size of one stream's memory in bytes.
        image_bytes: size, in bytes, of the images that one stream keeps to begin its next epoch with.
        peak_bytes: peak memory use in bytes. On a GPU: the memory that torch allocated. On a CPU: the resident memory
            of the process.
        reserved_bytes: peak memory reserved by torch on a GPU, in bytes; None on a CPU.
    """

    fill_steps: int
    steps: int
    step_ms: Percentiles
    steps_per_s: float
    frames_per_s: float
    gpu_busy: float | None
    epochs_begun: int
    state_bytes: int
    image_bytes: int
    peak_bytes: int
    reserved_bytes: int | None

    @property
    def tail(self) -> float:
        """How much longer the slowest steps take than the median step: p99 / p50."""
        return round(self.step_ms.p99 / self.step_ms.p50, 3)


@dataclass(frozen=True, slots=True)
class PathResult:
    """End-to-end results: capture processes, queues, worker, socket, and a subscriber in its own process.

    Latencies are those of records received while all cameras were running and their streams were full.

    Attributes:
        fps: frames per second of each camera.
        records: number of measured records.
        frames_per_s: records per second at the subscriber, of all cameras together.
        capture_to_publish_ms: time from the capture of a frame until its record is passed to the socket.
        capture_to_receive_ms: time from the capture of a frame until the subscriber has its record.
        outside_model_ms: `capture_to_publish_ms` without the time in the model.
        queue_ms, preprocess_ms, model_ms, publish_ms: the phases of `capture_to_publish_ms`, from the records' headers.
        captured, published, dropped, failed: numbers of frames in the whole run; a dropped frame was replaced by a
            newer one.
        lost: number of records that did not reach the subscriber because it was too slow.
    """

    fps: float
    records: int
    frames_per_s: float
    capture_to_publish_ms: Percentiles
    capture_to_receive_ms: Percentiles
    outside_model_ms: Percentiles
    queue_ms: Percentiles
    preprocess_ms: Percentiles
    model_ms: Percentiles
    publish_ms: Percentiles
    captured: int
    published: int
    dropped: int
    failed: int
    lost: int


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The report of one run."""

    settings: BenchSettings
    machine: Machine
    engine: EngineResult
    path: PathResult


def write_report(report: BenchReport, path: Path) -> None:
    """Write a report as JSON.

    Raises:
        BenchError: the file cannot be written.
    """
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error.strerror}") from error


def read_report(path: Path) -> BenchReport:
    """Read a report that `write_report` wrote.

    Raises:
        BenchError: the file cannot be read, or is not a report of this version of retinad.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=BenchReport)
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BenchError(f"{path} is not a report by `retinad bench --json` of this version: {error}") from error
