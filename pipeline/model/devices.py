"""Translates names of dtypes to PyTorch's dtypes, and classifies PyTorch's errors."""

import torch

from ..config import DType

_START_FAILURES = (
    "CUDA unknown error",
    "CUDA driver initialization failed",
    "Unexpected error from cudaGetDeviceCount()",
    "No CUDA GPUs are available",
)
"""Words of PyTorch's errors about a device that does not start, for example while its driver is being set up."""

_INSTALLATION = ("NVIDIA driver on your system is too old", "Found no NVIDIA driver", "not compiled with CUDA enabled")
"""Words of PyTorch's errors about a device that cannot start until its installation is changed."""

_DEVICE_FAILURES = ("CUDA error", "Triton Error [CUDA]", "illegal memory access", *_START_FAILURES)
_OUT_OF_MEMORY = ("CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED", "[CUDA]: out of memory")
"""Messages of CUDA, cuBLAS and Triton about memory that they allocate outside PyTorch's allocator."""


def torch_dtype(dtype: DType) -> torch.dtype:
    """PyTorch's dtype of this name."""
    match dtype:
        case "float16":
            return torch.float16
        case "bfloat16":
            return torch.bfloat16
        case "float32":
            return torch.float32


def is_device_failure(error: Exception) -> bool:
    """Whether the device itself failed, so that every later call fails too. Running out of memory does not count."""
    if is_out_of_memory(error):
        return False
    if isinstance(error, torch.AcceleratorError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in _DEVICE_FAILURES)


def installation_fault(error: Exception) -> str | None:
    """What must change in the device's installation, in PyTorch's words; None if the error is of another kind."""
    text = str(error).partition("\n")[0]
    return text if any(words in text for words in _INSTALLATION) else None


def start_fault() -> str | None:
    """Why CUDA does not start although it is installed, in PyTorch's words; None if it does, or there is no GPU.

    PyTorch itself only warns of it, once, and then reports that there are no devices.
    """
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:  # AssertionError: without CUDA
        text = str(error).partition("\n")[0]
        return text if any(words in text for words in (*_START_FAILURES[:-1], _INSTALLATION[0])) else None
    return None


def is_out_of_memory(error: Exception) -> bool:
    """Whether the device or the host ran out of memory, in which case a later call may succeed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in _OUT_OF_MEMORY)
