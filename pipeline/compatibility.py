"""Finds model settings that are incompatible with each other or with the installed packages, before loading anything.

Whether the device itself is suitable, for example recent enough, is checked by the code that opens it. Does not import
torch.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .config import ModelConfig
from .errors import ModelError

FLOAT8_CAPABILITY = (8, 9)
"""The least compute capability of a GPU that converts float8_e4m3fn: Ada, Hopper and later. Triton compiles it for no
older one."""

HEAD_DIMS = (64, 128)
"""Head dimensions (channels / heads) that the Triton and FlashInfer kernels support."""


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """A setting that the engine cannot run with.

    Attributes:
        field: name of the setting in `ModelConfig`.
        reason: why the engine cannot run with it.
        advice: how to correct the setting.
    """

    field: str
    reason: str
    advice: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.advice}"


def find_conflicts(config: ModelConfig, *, elsewhere: bool = False) -> tuple[ConfigFault, ...]:
    """Find all faults of a config whose `device` and `dtype` are already chosen.

    Args:
        config: the model.
        elsewhere: whether it runs on another machine, whose packages are not known.
    """
    triton = config.attention in {"auto", "triton"} and kernel_obstacle("triton", config, elsewhere=elsewhere) is None
    obstacle = fusing_obstacle(config, triton=triton, elsewhere=elsewhere)
    return attention_conflicts(config, elsewhere=elsewhere) + execution_conflicts(config, obstacle)


def capability_conflicts(config: ModelConfig, capability: tuple[int, int]) -> tuple[ConfigFault, ...]:
    """Find what a GPU of this compute capability cannot do."""
    if config.memory_dtype == "auto" or capability >= FLOAT8_CAPABILITY:
        return ()
    wanted, found = ("{}.{}".format(*numbers) for numbers in (FLOAT8_CAPABILITY, capability))
    needs = f"memory_dtype {config.memory_dtype!r} needs a GPU of compute capability {wanted} or more"
    return (ConfigFault("memory_dtype", f"{needs}; {config.device} has {found}", "set memory_dtype = 'auto'"),)


def refuse(faults: Sequence[ConfigFault]) -> None:
    """Raise ModelError if there are any faults."""
    if faults:
        raise ModelError("; ".join(map(str, faults)))


def attention_conflicts(config: ModelConfig, *, elsewhere: bool = False) -> tuple[ConfigFault, ...]:
    """Find the reason, if any, why the attention backend named in the config cannot be used."""
    if config.attention == "paged" and config.network.slot_tokens:
        reason = "paged does not support HorizonStream's network"
        return (ConfigFault("attention", reason, "set attention = 'dense'"),)
    if config.attention not in {"triton", "flashinfer"}:
        return ()
    kernels: Literal["triton", "flashinfer"] = "triton" if config.attention == "triton" else "flashinfer"
    obstacle = kernel_obstacle(kernels, config, elsewhere=elsewhere)
    return () if obstacle is None else (ConfigFault("attention", obstacle, "set attention = 'dense'"),)


def execution_conflicts(config: ModelConfig, obstacle: str | None) -> tuple[ConfigFault, ...]:
    """Find the reasons, if any, why `execution` and the `memory_dtype` that depends on it cannot be used.

    Args:
        config: the model.
        obstacle: the result of `fusing_obstacle`.
    """
    faults = []
    if obstacle is not None and config.execution in {"fused", "captured"}:
        reason = f"execution {config.execution!r} is not possible: {obstacle}"
        faults.append(ConfigFault("execution", reason, "set execution = 'auto'"))
    if config.memory_dtype != "auto" and (obstacle is not None or config.execution == "plain"):
        reason = f"memory_dtype {config.memory_dtype!r} needs fused execution: {obstacle or 'execution is plain'}"
        faults.append(ConfigFault("memory_dtype", reason, "set memory_dtype = 'auto'"))
    return tuple(faults)


def kernel_obstacle(
    kernels: Literal["triton", "flashinfer"], config: ModelConfig, *, elsewhere: bool = False
) -> str | None:
    """The reason why these attention kernels cannot run, or None if there is no known reason."""
    head_dim = config.network.channels // config.network.heads
    if kernels == "flashinfer" and config.network.slot_tokens:
        return "flashinfer does not support HorizonStream's network"
    if not config.device.startswith("cuda"):
        return f"{kernels} runs on CUDA, not on {config.device}"
    if config.dtype == "float32":
        return f"{kernels} supports float16 and bfloat16, not {config.dtype}"
    if kernels == "flashinfer" and config.memory_dtype != "auto":
        return f"flashinfer does not support a KV cache in {config.memory_dtype}"
    if head_dim not in HEAD_DIMS:
        return f"{kernels} supports heads of 64 or 128 channels, not {head_dim}"
    if not elsewhere and importlib.util.find_spec(kernels) is None:
        return f"{kernels} is not installed (it comes with retinad[gpu])"
    return None


def fusing_obstacle(config: ModelConfig, *, triton: bool, elsewhere: bool = False) -> str | None:
    """The reason why fused kernels or the requested CUDA graphs cannot run, or None if there is no known reason.

    Args:
        config: the model.
        triton: whether attention is computed by the Triton kernel.
        elsewhere: see `find_conflicts`.
    """
    if not config.network.depth:
        return "a network of depth 0 has nothing to fuse"
    if config.network.slot_tokens:
        return "HorizonStream's network has no fused kernels"
    if config.attention_layers and not triton:
        obstacle = kernel_obstacle("triton", config, elsewhere=elsewhere)
        return "fused kernels need attention = 'triton'" + (f", and {obstacle}" if obstacle else "")
    if config.dtype == "float32":
        return "fused kernels need dtype = 'bfloat16' or 'float16'"
    on_cuda = config.device.startswith("cuda")
    if not on_cuda and config.execution != "fused":
        return f"CUDA graphs need a CUDA device, not {config.device}"
    if on_cuda and not elsewhere and importlib.util.find_spec("triton") is None:
        return "triton is not installed: install retinad[gpu]"
    return None
