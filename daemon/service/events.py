"""Log lines about the service's start."""

import shutil
import sys
from collections.abc import Mapping, Sequence

import structlog

from retinad.pipeline.config import CurveConfig
from retinad.pipeline.engine.statistics import ModelDescription

from ..config.load import ServiceConfig
from ..versions import TESTED_ON_GPU, untested_on_gpu
from .startup_times import StartupTimes

_log = structlog.get_logger("retinad")


def log_start(
    model: ModelDescription,
    endpoints: Sequence[str],
    config: ServiceConfig,
    versions: Mapping[str, str],
    times: StartupTimes,
) -> None:
    """Log the model, the endpoints, how long startup took, and a command line for a first subscriber."""
    _log.info(
        "started",
        model=model.name,
        weights=model.weights,
        device=model.device,
        dtype=model.dtype,
        attention=model.attention,
        execution=model.execution,
        parameters=model.parameters,
        endpoints=list(endpoints),
        cameras=[camera.name for camera in config.cameras],
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
        ready_after_s=times.total_s,
        imports_s=times.imports_s,
        weights_s=times.weights_s,
        kernels_s=times.kernels_s,
        warm_up_s=times.warm_up_s,
        kernels_compiled=times.kernels_compiled,
    )
    if model.device.startswith("cuda") and untested_on_gpu(versions):
        tested = ", ".join(f"torch {torch} with triton {triton}" for torch, triton in TESTED_ON_GPU)
        _log.warning(
            "untested versions of torch and triton",
            torch=versions.get("torch"),
            triton=versions.get("triton"),
            tested=tested,
        )
    if model.attention_reason is not None:
        _log.info("attention backend selected", attention=model.attention, reason=model.attention_reason)
    if config.model.random_weights:
        _log.warning("random weights: the features are meaningless", set="model.checkpoint")
    if model.weights_note is not None:
        _log.warning("note in the checkpoint", note=model.weights_note, checkpoint=str(config.model.checkpoint))
    _log.info("subscribe with", command=subscribe_command(endpoints, config.publish.curve))


def subscribe_command(endpoints: Sequence[str], curve: CurveConfig | None) -> str:
    """A command line for a first subscriber on this machine."""
    endpoint = next((endpoint for endpoint in endpoints if endpoint.startswith("tcp://")), endpoints[0])
    for anywhere in ("0.0.0.0", "[::]", "*"):
        endpoint = endpoint.replace(f"//{anywhere}:", "//127.0.0.1:")
    keys = " --client-key CLIENT.key_secret --server-key SERVER.key" if curve else ""
    return f"{_program()} subscribe {endpoint}{keys}"


def _program() -> str:
    """The program's name, or the path that it was called by if its name is not on the PATH."""
    if shutil.which("retinad"):
        return "retinad"
    called = sys.argv[0]
    return f"{sys.executable} -m retinad.daemon" if called.endswith(".py") else called
