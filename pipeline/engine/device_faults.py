"""Decides after a failed run of the model whether to try the next frame or to give up on the device.

Running out of memory is temporary, once the failed run's tensors are released. A CUDA error is permanent: every later
call of the process fails too, or returns wrong numbers. If runs keep failing, the device counts as failed as well: a
new process may succeed where another frame would not.
"""

import gc

import torch

from ..errors import DeviceError
from ..model.devices import is_device_failure, is_out_of_memory

MOST_IN_A_ROW = 5
"""Number of consecutive runs that must fail with the same kind of error before the device counts as failed."""


class DeviceFaults:
    """Classifies errors that were raised while the model ran, and counts consecutive ones.

    Args:
        device: `cpu` or `cuda:<n>`.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._kind = ""
        self._in_a_row = 0

    def run_succeeded(self) -> None:
        """Report a successful run. Not to be called for a run of first blocks only."""
        self._in_a_row = 0

    def run_failed(self, error: Exception) -> None:
        """Report an error of a run whose streams have already been reset. May clear the error's traceback.

        Raises:
            DeviceError: the device failed, or too many runs in a row did.
        """
        self.check(error)
        kind = type(error).__name__
        self._in_a_row = self._in_a_row + 1 if kind == self._kind else 1
        self._kind = kind
        if self._in_a_row >= MOST_IN_A_ROW:
            many = f"{self._in_a_row} runs in a row failed"
            raise DeviceError(f"giving up on {self._device}: {many}, {kind}: {_first_line(error)}")

    def check(self, error: Exception) -> None:
        """Report an error that did not occur in a run of the model. Frees memory if there was too little.

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
        # Each library words a sticky error in its own way, but CUDA itself repeats it at every call.
        if not self._device.startswith("cuda"):
            return
        try:
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
        except RuntimeError as answer:
            text = f"{self._device} failed: {_first_line(answer)} (first seen as: {_first_line(error)})"
            raise DeviceError(text) from answer


def _first_line(error: Exception) -> str:
    # The further lines are PyTorch's advice on debugging kernels.
    return str(error).partition("\n")[0]


def _release_frames(error: BaseException | None) -> None:
    # A traceback keeps its stack frames alive, and these keep the tensors that filled the device's memory.
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
