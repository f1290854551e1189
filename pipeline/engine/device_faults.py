"""Decides after a failed run of the model: try the next frame, or give up the device.

Running out of memory is temporary, once the failed run's tensors are released. A CUDA error is not: every later call of
the process fails too, or returns wrong numbers. A run that keeps failing counts as a broken device as well: a new
process can help where the next frame cannot.
"""

import gc

import torch

from ..errors import DeviceError
from ..model.devices import is_device_failure, is_out_of_memory

MOST_IN_A_ROW = 5
"""Consecutive runs that fail with the same kind of error before the device is given up."""


class DeviceFaults:
    """Judges errors that were raised while the model ran, and counts consecutive ones.

    Args:
        device: `cpu` or `cuda:<n>`.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._kind = ""
        self._in_a_row = 0

    def run_succeeded(self) -> None:
        """Report a successful run, unless it was of first blocks only."""
        self._in_a_row = 0

    def run_failed(self, error: Exception) -> None:
        """Report an error of a run, whose streams have been reset. May clear the error's traceback.

        Raises:
            DeviceError: the device failed, or too many runs in a row did.
        """
        self.check(error)
        kind = type(error).__name__
        self._in_a_row = self._in_a_row + 1 if kind == self._kind else 1
        self._kind = kind
        if self._in_a_row >= MOST_IN_A_ROW:
            many = f"{self._in_a_row} runs in a row failed"
            raise DeviceError(f"{self._device} is given up: {many}, {kind}: {_first_line(error)}")

    def check(self, error: Exception) -> None:
        """Report an error of anything but a run of the model. Frees memory if there was too little.

        Raises:
            DeviceError: the device failed.
        """
        if isinstance(error, DeviceError):
            raise error
        if is_device_failure(error):
            raise DeviceError(f"{self._device} failed: {_first_line(error)}") from error
        if is_out_of_memory(error):
            _release_frames(error)
            gc.collect()
        if isinstance(error, RuntimeError | MemoryError):
            self._probe_device(error)

    def _probe_device(self, error: Exception) -> None:
        # Libraries word it in their own way, but CUDA itself repeats a sticky error at any call.
        if not self._device.startswith("cuda"):
            return
        try:
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
        except RuntimeError as answer:
            text = f"{self._device} failed: {_first_line(answer)} (first seen as: {_first_line(error)})"
            raise DeviceError(text) from answer


def _first_line(error: Exception) -> str:
    # PyTorch's advice on debugging kernels follows on further lines.
    return str(error).partition("\n")[0]


def _release_frames(error: BaseException | None) -> None:
    # A traceback holds its stack frames, and these the tensors that filled the device.
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
