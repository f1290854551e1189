"""Copies the results of a forward pass from the device to the host. Copies begin while the device still computes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBuffer:
    """Results on the device.

    Attributes:
        numbers: [F, numbers per frame], one row per frame.
        written: event that is recorded once the numbers are written; None on a CPU.
    """

    numbers: Tensor
    written: torch.cuda.Event | None

    @classmethod
    def of(cls, numbers: Tensor) -> "DeviceBuffer":
        """Wrap numbers that are written by the work launched so far."""
        if numbers.device.type != "cuda":
            return cls(numbers, None)
        # External: the event is recorded at each replay of a graph, so that CUDA streams outside the graph can wait for
        # it.
        written = torch.cuda.Event(external=True)  # type: ignore[no-untyped-call]
        written.record(torch.cuda.current_stream(numbers.device))
        return cls(numbers, written)


@dataclass(frozen=True, slots=True, eq=False)
class HostCopy:
    """Copies of buffers to the host that have been started.

    Attributes:
        buffers: the copies in host memory; not to be read before `wait`.
        held: the buffers on the device; not to be written before `wait`.
        done: event that is recorded at the end of the copies; None if there is nothing to wait for.
    """

    buffers: tuple[Tensor, ...]
    held: tuple[DeviceBuffer, ...]
    done: torch.cuda.Event | None

    @property
    def pending(self) -> bool:
        """Whether `wait` would block."""
        return self.done is not None and not self.done.query()  # type: ignore[no-untyped-call]

    def wait(self) -> tuple[Tensor, ...]:
        """Block until the copies are done, and return the buffers in host memory."""
        if self.done is not None:
            self.done.synchronize()
        return self.buffers


def fetch(buffers: Sequence[DeviceBuffer], copies: torch.cuda.Stream | None) -> HostCopy:
    """Start copying buffers to the host, each as soon as it is written. Does not block.

    Args:
        buffers: not to be written before the copies are done.
        copies: CUDA stream for the copies; None on a CPU, where nothing is copied.
    """
    if copies is None:
        return HostCopy(tuple(buffer.numbers for buffer in buffers), tuple(buffers), None)
    with torch.cuda.stream(copies):
        hosts = [_begin_copy(buffer, copies) for buffer in buffers]
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(copies)
    return HostCopy(tuple(hosts), tuple(buffers), done)


def _begin_copy(buffer: DeviceBuffer, copies: torch.cuda.Stream) -> Tensor:
    assert buffer.written is not None, "it is on a GPU"
    copies.wait_event(buffer.written)
    host = torch.empty(buffer.numbers.shape, dtype=buffer.numbers.dtype, pin_memory=True)
    return host.copy_(buffer.numbers, non_blocking=True)
