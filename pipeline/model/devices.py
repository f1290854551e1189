"""PyTorch's names of number formats, and what kind of failure its errors are."""

import torch

from ..config import DType

_DEVICE_FAILURES = ("CUDA error", "Triton Error [CUDA]", "illegal memory access")
_OUT_OF_MEMORY = ("CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED", "[CUDA]: out of memory")
"""As CUDA, cuBLAS and Triton say it of what they allocate beside PyTorch's own allocator."""


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
