"""Resolves the configured device and number format.

Torch takes a second to import, so it is imported only to look for a GPU.
"""

from ..config import DType
from ..errors import ModelError

CARD = "card"
"""Stands for a device: a GPU that need not be in this machine."""


def resolve_device(device: str) -> str:
    """A device's full name; `auto` is the first CUDA device if there is one, else the CPU. `card` is not looked for.

    Raises:
        ModelError: the device does not exist.
    """
    if device == "cpu":
        return device
    if device == CARD:
        return "cuda:0"
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return "cuda:0"
        if (fault := _start_fault()) is not None:
            raise ModelError(
                f"device 'auto' found CUDA, which does not start: {fault} (device = 'cpu' runs without it)"
            )
        return "cpu"
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index.isdecimal() or device == "cuda"):
        raise ModelError(f"device must be auto, cpu or cuda:<n>, got {device!r}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        fault = None if count else _start_fault()
        seen = f"PyTorch {torch.__version__} sees {count} CUDA devices" + (f": {fault}" if fault else "")
        raise ModelError(f"device {device!r} does not exist: {seen}")
    return f"cuda:{int(index or 0)}"


def device_capability(device: str) -> tuple[int, int]:
    """The compute capability of a CUDA device, such as (9, 0)."""
    import torch

    return torch.cuda.get_device_capability(device)


def _start_fault() -> str | None:
    from .devices import start_fault

    return start_fault()


def resolve_dtype(dtype: str, device: str) -> DType:
    """The name of a number format; `auto` is bfloat16 on CUDA and float32 on the CPU.

    Raises:
        ModelError: the format is unknown.
    """
    match dtype:
        case "auto":
            return "float32" if device == "cpu" else "bfloat16"
        case "float16" | "bfloat16" | "float32":
            return dtype
        case _:
            raise ModelError(f"dtype must be auto, float16, bfloat16 or float32, got {dtype!r}")
