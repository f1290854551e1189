"""Where the model runs and in which number format: what `auto` means, and what kind of failure torch's errors are."""

import torch

from ..config import DType
from ..errors import ModelError

_DEVICE_FAILURES = ("CUDA error", "Triton Error [CUDA]", "illegal memory access")
_OUT_OF_MEMORY = ("CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED", "[CUDA]: out of memory")
"""As CUDA, cuBLAS and Triton say it of what they allocate beside PyTorch's own allocator."""


def resolve_device(device: str) -> str:
    """A device's full name: `auto` is the first CUDA device where there is one, else the CPU.

    Raises:
        ModelError: there is no such device.
    """
    if device == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index.isdecimal() or device == "cuda"):
        raise ModelError(f"device is auto, cpu or cuda:<n>, got {device!r}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        raise ModelError(f"device {device!r} is not there: PyTorch {torch.__version__} sees {count} CUDA devices")
    return f"cuda:{int(index or 0)}"


def resolve_dtype(dtype: str, device: str) -> DType:
    """A compute format's name: `auto` is bfloat16 on CUDA and float32 on the CPU.

    Raises:
        ModelError: the format is unknown.
    """
    match dtype:
        case "auto":
            return "float32" if device == "cpu" else "bfloat16"
        case "float16" | "bfloat16" | "float32":
            return dtype
        case _:
            raise ModelError(f"dtype is auto, float16, bfloat16 or float32, got {dtype!r}")


def torch_dtype(dtype: DType) -> torch.dtype:
    """PyTorch's object for a format's name."""
    match dtype:
        case "float16":
            return torch.float16
        case "bfloat16":
            return torch.bfloat16
        case "float32":
            return torch.float32


def is_device_failure(error: Exception) -> bool:
    """Whether the device itself failed, so that every later call will too. Being out of memory is none."""
    if is_out_of_memory(error):
        return False
    if isinstance(error, torch.AcceleratorError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in _DEVICE_FAILURES)


def is_out_of_memory(error: Exception) -> bool:
    """Whether there was too little memory, on the device or the host: the next call may find enough."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in _OUT_OF_MEMORY)
