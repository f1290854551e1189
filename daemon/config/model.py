"""Turns `[model]` into a ModelConfig with nothing left `auto`: preset, device and dtype chosen, shape checked."""

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from retinad.pipeline.compatibility import find_conflicts
from retinad.pipeline.config import ModelConfig, NetworkConfig, OutputConfig, StreamConfig
from retinad.pipeline.errors import ModelError
from retinad.pipeline.frames import PATCH_GROUPS, TokenGroup
from retinad.pipeline.model.backbones import BACKBONES
from retinad.pipeline.model.placement import resolve_device, resolve_dtype
from retinad.pipeline.model.presets import PRESETS, Preset, default_preset

from .errors import ConfigError
from .problems import Report
from .resolve import given
from .tables import ModelTable

_PLAIN = (
    "seed",
    "execution",
    "memory_dtype",
    "flashinfer_kernels",
    "max_batch",
    "max_streams",
    "step_timeout_s",
    "image_width",
)
"""Keys that are fields of the model's config as they are."""

_LEAST_3D = 12
"""Channels of a head, a multiple of 4, that time, rows and columns can share (`axis_channels`)."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The model, and what a stream of it remembers unless the config says otherwise."""

    model: ModelConfig
    stream: StreamConfig


def resolve_model(table: ModelTable, report: Report) -> ResolvedModel:
    """`[model]` over its preset, not placed yet (`place_model`); what is wrong goes to the report."""
    preset = PRESETS[_preset_name(table)]
    keys = given(table)
    network = replace(preset.network, **_only(keys, NetworkConfig))
    output = replace(_default_output(preset, network), **_only(keys, OutputConfig))
    checkpoint, backbone = _resolve_weights(table, network, report)
    plain = {"image_width": preset.image_width} | keys
    model = replace(
        ModelConfig(name=preset.name),
        **{key: plain[key] for key in _PLAIN if key in plain},
        network=network,
        output=replace(output, dtype=table.output_dtype) if table.output_dtype else output,
        checkpoint=checkpoint,
        backbone_checkpoint=backbone,
        attention=table.attention,
    )
    _check_network(model.network, report)
    _check_output(model, report)
    return ResolvedModel(model, preset.stream)


def place_model(model: ModelConfig, table: ModelTable, report: Report) -> ModelConfig:
    """The model on its device and in its number format. Last of all: it takes torch, a second to import.

    Raises:
        ConfigError: it cannot run there as the config wants it.
        ModelError: the configured device is not there; or `auto` has found no GPU, and the model cannot run without.
    """
    device = resolve_device(table.device)
    placed = replace(model, device=device, dtype=resolve_dtype(table.dtype, device))
    for conflict in find_conflicts(placed):
        report.add(("model", conflict.key), conflict.reason, conflict.advice)
    try:
        report.raise_if_any()
    except ConfigError as error:
        if table.device == "auto" and device == "cpu":  # a GPU may be there at the next try
            raise ModelError(f"no CUDA device is there, which device = 'auto' looks for: {error}") from error
        raise
    return placed


def _preset_name(table: ModelTable) -> str:
    if table.preset != "auto":
        return table.preset
    device = resolve_device("auto") if table.device == "auto" else table.device
    return default_preset(device).name


def _only(keys: dict[str, Any], kind: type[NetworkConfig] | type[OutputConfig]) -> dict[str, Any]:
    """The keys that are fields of a dataclass; `dtype` of the outputs has a key of its own."""
    return {field.name: keys[field.name] for field in fields(kind) if field.name in keys and field.name != "dtype"}


def _default_output(preset: Preset, network: NetworkConfig) -> OutputConfig:
    if network.depth == 0:
        return OutputConfig(layers=(0,), tokens=(TokenGroup.PATCH,))
    return OutputConfig(layers=preset.layers)


def _resolve_weights(table: ModelTable, network: NetworkConfig, report: Report) -> tuple[Path | None, Path | None]:
    """The files of `checkpoint` and `backbone_checkpoint`; one of them at most."""
    whole = _existing(table.checkpoint, "checkpoint", report)
    backbone = _existing(table.backbone_checkpoint, "backbone_checkpoint", report)
    if backbone is not None and BACKBONES[network.patch_embed].release is None:
        released = [name for name, entry in BACKBONES.items() if entry.release is not None]
        wanted = f"expected patch_embed to be one of {', '.join(released)} with it"
        report.add(("model", "backbone_checkpoint"), f"{wanted}, got {network.patch_embed!r}")
    if whole is not None and backbone is not None:
        report.add(("model", "backbone_checkpoint"), "expected no checkpoint beside it: that holds the backbone too")
        return whole, None
    return whole, backbone


def _existing(text: str | None, key: str, report: Report) -> Path | None:
    if text is None:
        return None
    path = Path(text)
    if not os.path.isfile(path):  # Path.is_file raises where a folder may not be entered
        report.add(("model", key), "there is no such file, or it cannot be reached")
    return path


def _check_network(network: NetworkConfig, report: Report) -> None:
    head_channels, rest = divmod(network.channels, network.heads)
    if rest:
        report.add(("model", "channels"), f"expected a multiple of heads = {network.heads}, got {network.channels}")
    elif head_channels % 4:
        report.add(
            ("model", "channels"),
            f"expected channels / heads to be a multiple of 4 (rotary embedding), got {head_channels}",
        )
    elif network.rope3d and network.depth and head_channels < _LEAST_3D:
        wanted = f"expected channels / heads to be at least {_LEAST_3D} with rope3d"
        report.add(("model", "channels"), f"{wanted}, got {head_channels}")
    for mismatch in BACKBONES[network.patch_embed].mismatches(network):
        wanted = f"expected {mismatch.field} = {mismatch.expected} with it"
        report.add(("model", "patch_embed"), f"{wanted}, got {mismatch.actual}")


def _check_output(model: ModelConfig, report: Report) -> None:
    network, output = model.network, model.output
    if model.image_width % network.patch_size:
        wanted = f"expected a multiple of patch_size = {network.patch_size}"
        report.add(("model", "image_width"), f"{wanted}, got {model.image_width}")
    if list(output.layers) != sorted(set(output.layers)):
        report.add(("model", "layers"), "expected ascending numbers, each once")
    if network.depth == 0:
        _check_patches_only(output, report)
    elif max(output.layers) >= network.depth:
        report.add(("model", "layers"), f"expected 0 to {network.depth - 1} (depth - 1), got {max(output.layers)}")
    if len(set(output.tokens)) != len(output.tokens):
        report.add(("model", "tokens"), "expected each group once")
    if TokenGroup.REGISTERS in output.tokens and not network.register_tokens:
        report.add(("model", "tokens"), "there are no registers to publish with register_tokens = 0")
    columns = model.image_width // network.patch_size
    if TokenGroup.POOLED in output.tokens and output.pool > columns:
        report.add(("model", "pool"), f"expected at most the picture's {columns} columns of patches, got {output.pool}")


def _check_patches_only(output: OutputConfig, report: Report) -> None:
    """Without blocks there is one layer, the embedding, and there are no special tokens."""
    if output.layers != (0,):
        report.add(("model", "layers"), f"expected [0] with depth = 0 (the patch embedding), got {list(output.layers)}")
    others = [group.value for group in output.tokens if group not in PATCH_GROUPS]
    if others:
        report.add(("model", "tokens"), f"expected patch or pooled with depth = 0, got {', '.join(others)}")
