"""Which settings of a model cannot run together, or with the installed packages: known before anything is loaded.

What only the device itself can tell, such as that it is too old, is left to what opens it. Imports no torch.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .config import ModelConfig
from .errors import ModelError

HEAD_DIMS = (64, 128)
"""Channels of a head that Triton's and FlashInfer's kernels are used with."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A setting that cannot run.

    Attributes:
        key: its field in `ModelConfig`, which is its key in a config file, too.
        reason: why it cannot.
        advice: what to do.
    """

    key: str
    reason: str
    advice: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.advice}"


def find_conflicts(config: ModelConfig) -> tuple[Conflict, ...]:
    """All that can be known against a config whose device and number format are chosen."""
    triton = config.attention in {"auto", "triton"} and kernel_obstacle("triton", config) is None
    return attention_conflicts(config) + execution_conflicts(config, fusing_obstacle(config, triton=triton))


def refuse(conflicts: Sequence[Conflict]) -> None:
    """Raise ModelError if there are any conflicts."""
    if conflicts:
        raise ModelError("; ".join(map(str, conflicts)))


def attention_conflicts(config: ModelConfig) -> tuple[Conflict, ...]:
    """What is known against the attention backend that the config names."""
    if config.attention not in {"triton", "flashinfer"}:
        return ()
    kernels: Literal["triton", "flashinfer"] = "triton" if config.attention == "triton" else "flashinfer"
    obstacle = kernel_obstacle(kernels, config)
    return () if obstacle is None else (Conflict("attention", obstacle, "set attention = 'dense'"),)


def execution_conflicts(config: ModelConfig, obstacle: str | None) -> tuple[Conflict, ...]:
    """What is known against the execution that the config names, and against what needs it; see `fusing_obstacle`."""
    conflicts = []
    if obstacle is not None and config.execution in {"fused", "captured"}:
        reason = f"execution {config.execution!r} is not possible: {obstacle}"
        conflicts.append(Conflict("execution", reason, "set execution = 'auto'"))
    if config.memory_dtype != "auto" and (obstacle is not None or config.execution == "plain"):
        reason = f"memory_dtype {config.memory_dtype!r} needs fused execution: {obstacle or 'it is plain'}"
        conflicts.append(Conflict("memory_dtype", reason, "set memory_dtype = 'auto'"))
    return tuple(conflicts)


def kernel_obstacle(kernels: Literal["triton", "flashinfer"], config: ModelConfig) -> str | None:
    """Why attention's kernels cannot run, or None where nothing is known against them."""
    head_dim = config.network.channels // config.network.heads
    if not config.device.startswith("cuda"):
        return f"{kernels} runs on CUDA, not on {config.device}"
    if config.dtype == "float32":
        return f"{kernels} attends in float16 or bfloat16, not in {config.dtype}"
    if kernels == "flashinfer" and config.memory_dtype != "auto":
        return f"flashinfer reads no memory in {config.memory_dtype}"
    if head_dim not in HEAD_DIMS:
        return f"{kernels} is used with heads of 64 or 128 channels, not {head_dim}"
    if importlib.util.find_spec(kernels) is None:
        return f"{kernels} is not installed (it comes with retinad[gpu])"
    return None


def fusing_obstacle(config: ModelConfig, *, triton: bool) -> str | None:
    """Why fused kernels, or the graphs that are asked for, cannot run; None where nothing is known against them.

    Args:
        config: the model.
        triton: whether Triton's kernel attends.
    """
    if not config.network.depth:
        return "a network of depth 0 has nothing to fuse"
    if config.attention_layers and not triton:
        obstacle = kernel_obstacle("triton", config)
        return "it needs attention = 'triton'" + (f", and {obstacle}" if obstacle else "")
    if config.dtype == "float32":
        return "it needs dtype = 'bfloat16' or 'float16'"
    on_cuda = config.device.startswith("cuda")
    if not on_cuda and config.execution != "fused":
        return f"CUDA graphs need a CUDA device, not {config.device}"
    if on_cuda and importlib.util.find_spec("triton") is None:
        return "triton is not installed: install retinad[gpu]"
    return None
