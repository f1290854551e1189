"""Translates names of dtypes to PyTorch's dtypes, and classifies PyTorch's errors."""

import torch

from ..config import DType

_DEVICE_FAILURES = ("CUDA error", "Triton Error [CUDA]", "illegal memory access")
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


def is_out_of_memory(error: Exception) -> bool:
    """Whether the device or the host ran out of memory, in which case a later call may succeed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in _OUT_OF_MEMORY)
