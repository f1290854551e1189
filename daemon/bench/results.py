"""What `retinad bench` measured and on what, as frozen values that JSON files keep and later runs are compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
import numpy as np

from retinad.pipeline.config import DType, NetworkConfig, StreamConfig


class BenchError(Exception):
    """A measurement that cannot be made, or a file of an earlier one that cannot be read."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """How long something took, in milliseconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Self:
        """Of at least one measurement."""
        return cls(*(round(float(value), 3) for value in np.percentile(milliseconds, (50, 95, 99))))


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What was asked for: two runs are alike if these are.

    Attributes:
        model: the preset's name.
        weights: where they are from; `random:<seed>` where they are random.
        device: `cpu` or `cuda:<n>`.
        dtype, attention: what computes.
        mixers: of each global block, how it mixes tokens over time.
        network: the model's shape.
        image_width: width in pixels of the picture that the model sees.
        layers, tokens, output_dtype: what is published.
        max_batch: frames in one forward at most.
        cameras: streams, each with one frame in a step.
        size: width and height of the cameras' pictures.
        steps: steps measured, and frames a camera sends once its stream is filled.
        window_full: whether the streams' windows were filled before anything was measured.
        stream: what a stream remembers.
        fps: frames a second asked of each camera, or None for what the step allows, at most 30.
    """

    model: str
    weights: str
    device: str
    dtype: DType
    attention: str
    mixers: tuple[str, ...]
    network: NetworkConfig
    image_width: int
    layers: tuple[int, ...]
    tokens: tuple[str, ...]
    output_dtype: DType
    max_batch: int
    cameras: int
    size: tuple[int, int]
    steps: int
    window_full: bool
    stream: StreamConfig
    fps: float | None


@dataclass(frozen=True, slots=True)
class Machine:
    """What it ran on.

    Attributes:
        versions: of retinad and the libraries below it, by name.
        cpu, cores: the processor, and how many of its cores this process may use.
        gpu, driver: name of the GPU and version of its driver, or None on a CPU.
    """

    versions: Mapping[str, str]
    cpu: str
    cores: int
    gpu: str | None
    driver: str | None


@dataclass(frozen=True, slots=True)
class EngineResult:
    """The engine alone: one frame of each stream in every step, one step after the other.

    Attributes:
        fill_steps: steps before the measurement, which filled the streams.
        steps: steps measured.
        step_ms: wall time of a step, from pictures in memory to features in memory.
        steps_per_s, frames_per_s: over all measured steps.
        gpu_busy: share of the median step in which kernels or copies ran, or None on a CPU.
        epochs_begun: memories made anew during the measurement, of all streams: each is emptier for a while.
        state_bytes: the memory of one stream.
        picture_bytes: pictures that one stream keeps for its next epoch.
        peak_bytes: memory at its peak: what torch had allocated on a GPU, what the process held on a CPU.
        reserved_bytes: what torch had taken of the GPU at its peak, or None on a CPU.
    """

    fill_steps: int
    steps: int
    step_ms: Percentiles
    steps_per_s: float
    frames_per_s: float
    gpu_busy: float | None
    epochs_begun: int
    state_bytes: int
    picture_bytes: int
    peak_bytes: int
    reserved_bytes: int | None

    @property
    def tail(self) -> float:
        """The slowest steps over the usual ones: p99 / p50."""
        return round(self.step_ms.p99 / self.step_ms.p50, 3)


@dataclass(frozen=True, slots=True)
class PathResult:
    """The whole path: capture processes, queues, worker, socket, and a subscriber in a process of its own.

    Latencies are of the records received while every camera was running with a filled stream.

    Attributes:
        fps: frames a second that each camera gave.
        records: records measured.
        frames_per_s: records a second at the subscriber, of all cameras.
        capture_to_publish_ms: from the frame's capture until its record is handed to the socket.
        capture_to_receive_ms: until the subscriber has it.
        outside_model_ms: capture to publish without the model's run.
        queue_ms, preprocess_ms, model_ms, publish_ms: the parts of it, as the records' headers give them.
        captured, published, dropped, failed: frames, over the whole run; dropped ones gave way to newer ones.
        lost: records that did not reach the subscriber, which was too slow for them.
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
    """All of one run."""

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
        BenchError: the file cannot be read, or is no such report.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=BenchReport)
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BenchError(f"{path} is no report of this version's `retinad bench --json`: {error}") from error
