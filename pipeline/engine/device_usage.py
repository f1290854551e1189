"""Reports a device's name, free memory, peak memory and busy time. Devices are named as in the config."""

import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from .batch_size import Room


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The peak memory use since the process started.

    Attributes:
        used_bytes: memory that torch allocated on a GPU, or the resident memory of the process on a CPU, in bytes.
        reserved_bytes: memory that torch reserved on a GPU, in bytes; None on a CPU.
    """

    used_bytes: int
    reserved_bytes: int | None


def free_room(device: str) -> Room | None:
    """The free memory of a device, `cpu` or `cuda:<n>`; None for a CPU, whose memory is not measured."""
    return Room.of(torch.device(device))


def peak_memory(device: str) -> PeakMemory:
    """The peak memory use on a device, `cpu` or `cuda:<n>`."""
    if device.startswith("cuda"):
        return PeakMemory(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))
    return PeakMemory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, None)


def gpu_name(device: str) -> str | None:
    """The name of a GPU, or None for a CPU."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else None


def gpu_busy_s(device: str, work: Callable[[], None]) -> float | None:
    """Seconds in which the GPU ran kernels or copies during `work`; None on a CPU, or if the profiler recorded nothing.

    The profiler slows down the host, so compare the result with how long the same work takes without the profiler.
    """
    if not device.startswith("cuda"):
        return None
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        work()
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type.name == "CUDA"
    ]
    return covered(spans) / 1e6 if spans else None


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Total length of the spans, where overlaps count once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
