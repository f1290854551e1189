"""The resources of a process, read from /proc, and statistics that are robust against outliers."""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Sample:
    """The resources of a process at one moment.

    Attributes:
        at_s: `time.monotonic()`.
        resident_mb: its resident memory of all kinds, in MB (10^6 bytes).
        private_mb: the anonymous part of it, without files and shared memory: the heaps.
        threads, descriptors: how many it has.
        frame_maps: shared memories of capture processes that it has mapped.
        load: runnable processes on the machine, averaged over the last minute.
    """

    at_s: float
    resident_mb: float
    private_mb: float
    threads: int
    descriptors: int
    frame_maps: int
    load: float


def sample(pid: int) -> Sample:
    """Measure a process."""
    folder = Path(f"/proc/{pid}")
    fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return Sample(
        at_s=time.monotonic(),
        resident_mb=_mb(fields["VmRSS"]),
        private_mb=_mb(fields["RssAnon"]),
        threads=int(fields["Threads"]),
        descriptors=len(os.listdir(folder / "fd")),
        frame_maps=(folder / "maps").read_text().count("retinad-frames"),
        load=os.getloadavg()[0],
    )


def slope_per_hour(at_s: Sequence[float], values: Sequence[float]) -> float:
    """The Theil-Sen slope: the median over all pairs of samples. Up to a third of outliers do not move it."""
    at, value = np.asarray(at_s), np.asarray(values)
    first, second = np.triu_indices(len(at), k=1)
    return float(np.median((value[second] - value[first]) / (at[second] - at[first]))) * 3600


def p99(values: Iterable[float]) -> float:
    """The 99th percentile; NaN if there are no values."""
    values = list(values)
    return float(np.percentile(values, 99)) if values else float("nan")


def processes_with(variable: str) -> list[int]:
    """Processes whose environment has this `NAME=value`, as that of a child process has."""
    folders = (folder for folder in Path("/proc").iterdir() if folder.name.isdigit())
    return [int(folder.name) for folder in folders if variable.encode() in _read(folder / "environ").split(b"\0")]


def command_of(pid: int) -> list[str]:
    """The arguments of a process; empty if it has ended."""
    return _read(Path(f"/proc/{pid}/cmdline")).decode(errors="replace").split("\0")[:-1]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended, or belongs to another user
        return b""


def _mb(field: str) -> float:
    return int(field.split()[0]) * 1024 / 1e6
