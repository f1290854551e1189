"""What a failed run of the model means: the next frame is tried, or the device is not to be trusted any more.

Out of memory passes, once what the failed run held is let go. A CUDA error does not: every later call of the process
fails too, or gives numbers that are wrong. What fails again and again is taken for broken as well: a new process can
help where the next frame cannot.
"""

import gc

import torch

from ..errors import DeviceError
from ..model.devices import is_device_failure, is_out_of_memory

MOST_IN_A_ROW = 5
"""Runs that may fail in a row, each with the same kind of error, before the device is given up."""


class DeviceFaults:
    """Judges what was raised while the model ran, and counts.

    Args:
        device: `cpu` or `cuda:<n>`.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._kind = ""
        self._in_a_row = 0

    def run_succeeded(self) -> None:
        """A run gave features, and not of first blocks only."""
        self._in_a_row = 0

    def run_failed(self, error: Exception) -> None:
        """A run raised this; its streams have been started anew. The error's traceback may be gone afterwards.

        Raises:
            DeviceError: the device failed, or it was one too many in a row.
        """
        self.check(error)
        kind = type(error).__name__
        self._in_a_row = self._in_a_row + 1 if kind == self._kind else 1
        self._kind = kind
        if self._in_a_row >= MOST_IN_A_ROW:
            many = f"{self._in_a_row} runs in a row failed"
            raise DeviceError(f"{self._device} is given up: {many}, {kind}: {_said(error)}")

    def check(self, error: Exception) -> None:
        """Something that is not a run of the model raised this. Memory is given back if there was too little.

        Raises:
            DeviceError: the device failed.
        """
        if isinstance(error, DeviceError):
            raise error
        if is_device_failure(error):
            raise DeviceError(f"{self._device} failed: {_said(error)}") from error
        if is_out_of_memory(error):
            _let_go(error)
            gc.collect()
        if isinstance(error, RuntimeError | MemoryError):
            self._ask_device(error)

    def _ask_device(self, error: Exception) -> None:
        # Libraries have words of their own for it: CUDA itself repeats an error that stays, whatever it is asked.
        if not self._device.startswith("cuda"):
            return
        try:
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
        except RuntimeError as answer:
            text = f"{self._device} failed: {_said(answer)} (first seen as: {_said(error)})"
            raise DeviceError(text) from answer


def _said(error: Exception) -> str:
    # PyTorch's advice on how to debug a kernel comes in further lines.
    return str(error).partition("\n")[0]


def _let_go(error: BaseException | None) -> None:
    # A traceback holds the frames that it passed through, and these the tensors that filled the device.
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
