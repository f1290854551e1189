"""The choice between Triton and PyTorch, which every wrapper makes in the same way."""

from importlib.util import find_spec

import torch

TRITON_INSTALLED = find_spec("triton") is not None


def runs_triton(device: torch.device) -> bool:
    """Whether Triton kernels can run on tensors of `device`: on CUDA, or on the CPU in Triton's interpreter mode.

    False if triton is not installed. For CPU tensors, triton is imported if it is installed.
    """
    if not TRITON_INSTALLED:
        return False
    if device.type == "cuda":
        return True
    import triton  # type: ignore[import-untyped,unused-ignore]  # no py.typed

    return device.type == "cpu" and bool(triton.knobs.runtime.interpret)
