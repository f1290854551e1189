"""Log lines about the service's start and its reloads."""

import dataclasses
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence

import structlog

from retinad.pipeline.config import CurveConfig
from retinad.pipeline.engine.statistics import ModelDescription

from ..config.keys import config_key
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
    """Log what runs where, how long the start took, and a command line for a first subscriber."""
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


def log_reload(old: ServiceConfig, new: ServiceConfig) -> None:
    """Log which cameras were added, removed and changed."""
    before, after = ({camera.name: camera for camera in config.cameras} for config in (old, new))
    _log.info(
        "reloaded",
        added=sorted(after.keys() - before.keys()),
        removed=sorted(before.keys() - after.keys()),
        changed=sorted(name for name in before.keys() & after.keys() if before[name] != after[name]),
    )


def different_keys(old: object, new: object, prefix: str = "") -> Iterator[str]:
    """Keys of the fields in which two configs of the same kind differ, except cameras and secrets."""
    for field in dataclasses.fields(old):  # type: ignore[arg-type]  # only called with dataclasses
        ours, theirs = getattr(old, field.name), getattr(new, field.name)
        if ours == theirs or not field.compare or field.name in ("cameras", "secrets"):
            continue
        name = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(ours) and type(ours) is type(theirs):
            yield from different_keys(ours, theirs, f"{name}.")
        else:
            yield config_key(name if "." in name else f"service.{name}")


def subscribe_command(endpoints: Sequence[str], curve: CurveConfig | None) -> str:
    """A command line for a first subscriber on this machine."""
    endpoint = next((endpoint for endpoint in endpoints if endpoint.startswith("tcp://")), endpoints[0])
    for anywhere in ("0.0.0.0", "[::]", "*"):
        endpoint = endpoint.replace(f"//{anywhere}:", "//127.0.0.1:")
    keys = " --client-key CLIENT.key_secret --server-key SERVER.key" if curve else ""
    return f"{_program()} subscribe {endpoint}{keys}"


def _program() -> str:
    """The program's name, or how it was called if its name is not on the PATH."""
    if shutil.which("retinad"):
        return "retinad"
    called = sys.argv[0]
    return f"{sys.executable} -m retinad.daemon" if called.endswith(".py") else called
