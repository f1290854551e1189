"""Resolves `[model]` to a ModelConfig: chooses preset, device and number format, and checks the network's shape."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from retinad.pipeline.compatibility import capability_conflicts, find_conflicts
from retinad.pipeline.config import ModelConfig, NetworkConfig, OutputConfig, ResizeMode, StreamConfig
from retinad.pipeline.frames import MAP_KINDS, PATCH_GROUPS, OutputKind, TokenGroup
from retinad.pipeline.model.backbones import BACKBONES
from retinad.pipeline.model.placement import CARD, device_capability, resolve_device, resolve_dtype
from retinad.pipeline.model.presets import PRESETS, Preset, default_preset
from retinad.pipeline.model.weight_paths import weights_fault

from .problems import KeyFault
from .tables import ModelTable, configured_keys
from .windows import window_model_faults

_PLAIN = (
    "seed",
    "execution",
    "memory_dtype",
    "flashinfer_kernels",
    "max_batch",
    "max_streams",
    "step_timeout_s",
    "image_width",
    "outputs",
)
"""Keys that are fields of ModelConfig under the same name."""

_LEAST_3D = 12
"""The smallest head dimension that is a multiple of 4 and can be divided among time, rows and columns (see
`axis_channels`)."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model resolved from `[model]`, and what is wrong with its settings.

    Attributes:
        model: the model, not yet placed on a device (see `place_model`).
        stream: the preset's defaults for `[stream]`.
        resize: the preset's default for how images are resized.
        faults: what is wrong.
    """

    model: ModelConfig
    stream: StreamConfig
    resize: ResizeMode = ResizeMode.CROP
    faults: tuple[KeyFault, ...] = ()

    @property
    def has_windows(self) -> bool:
        """Whether the network runs window by window, see `windows`."""
        return self.model.network.horizon is not None


def resolve_model(table: ModelTable, *, is_complete: bool = True) -> ResolvedModel:
    """Override the defaults of the preset with the keys of `[model]`.

    Args:
        table: the checked table.
        is_complete: whether all keys of the table are valid. If not, conflicts between settings are not reported, since
            they may be consequences of a key that was left out.
    """
    preset = PRESETS[_preset_name(table)]
    keys = configured_keys(table)
    network = replace(preset.network, **_only(keys, NetworkConfig))
    output = replace(_default_output(preset, network), **_only(keys, OutputConfig))
    checkpoint, backbone, faults = _resolve_weights(table, network)
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
    faults += [*_check_network(network), *_check_output(model), *window_model_faults(model, keys)]
    if is_complete and not faults and table.device not in ("auto", CARD):
        faults += _check_execution(model, table.device, table)
    return ResolvedModel(model, preset.stream, preset.resize, tuple(faults))


def stand_in() -> ResolvedModel:
    """A placeholder for a model whose preset is not known, in a config that is refused anyway."""
    return ResolvedModel(ModelConfig(), default_preset("cpu").stream)


def place_model(model: ModelConfig, table: ModelTable) -> tuple[ModelConfig, tuple[KeyFault, ...]]:
    """Set a model's device and number format. Imports torch, which takes a second, to look for a GPU.

    Returns:
        The model, and what is wrong with its settings on this device.

    Raises:
        ModelError: the configured device does not exist.
    """
    device = resolve_device(table.device)
    placed = replace(model, device=device, dtype=resolve_dtype(table.dtype, device))
    return placed, tuple(_check_execution(model, device, table))


def _check_execution(model: ModelConfig, device: str, table: ModelTable) -> Iterator[KeyFault]:
    placed = replace(model, device=device, dtype=resolve_dtype(table.dtype, device))
    faults = find_conflicts(placed, elsewhere=table.device == CARD)
    if device.startswith("cuda") and table.device != CARD and placed.memory_dtype != "auto" and not faults:
        faults = capability_conflicts(placed, device_capability(device))
    for fault in faults:
        yield KeyFault(("model", fault.field), fault.reason, fault.advice)


def _preset_name(table: ModelTable) -> str:
    if table.preset != "auto":
        return table.preset
    device = resolve_device(table.device) if table.device in ("auto", CARD) else table.device
    return default_preset(device).name


def _only(keys: dict[str, Any], kind: type[NetworkConfig] | type[OutputConfig]) -> dict[str, Any]:
    # The key `dtype` sets the model's number format, and `output_dtype` that of the outputs.
    return {field.name: keys[field.name] for field in fields(kind) if field.name in keys and field.name != "dtype"}


def _default_output(preset: Preset, network: NetworkConfig) -> OutputConfig:
    if network.depth == 0:
        return OutputConfig(layers=(0,), tokens=(TokenGroup.PATCH,))
    if network.horizon is not None:
        return OutputConfig(layers=preset.layers, tokens=(TokenGroup.SCALE, TokenGroup.PATCH))
    return OutputConfig(layers=preset.layers)


def _resolve_weights(table: ModelTable, network: NetworkConfig) -> tuple[Path | None, Path | None, list[KeyFault]]:
    # The files of `checkpoint` and `backbone_checkpoint`, of which at most one may be set.
    texts = {"checkpoint": table.checkpoint, "backbone_checkpoint": table.backbone_checkpoint}
    faults = [
        KeyFault(("model", key), reason)
        for key, text in texts.items()
        if text is not None and (reason := _weights_fault(text)) is not None
    ]
    whole, backbone = (None if text is None else Path(text) for text in texts.values())
    path = ("model", "backbone_checkpoint")
    if backbone is not None and BACKBONES[network.patch_embed].release is None:
        released = [name for name, entry in BACKBONES.items() if entry.release is not None]
        wanted = f"expected patch_embed to be one of {', '.join(released)}"
        faults.append(KeyFault(path, f"{wanted}, got {network.patch_embed!r}"))
    if whole is not None and backbone is not None:
        faults.append(
            KeyFault(
                path, "expected checkpoint or backbone_checkpoint, not both: a checkpoint already contains the backbone"
            )
        )
        backbone = None
    return whole, backbone, faults


def _weights_fault(text: str) -> str | None:
    # `lexists` is False too for a path in a folder that may not be entered.
    if not os.path.lexists(text) or os.path.isdir(text):
        return "there is no such file, or it cannot be reached"
    return weights_fault(Path(text))


def _check_network(network: NetworkConfig) -> Iterator[KeyFault]:
    path = ("model", "channels")
    head_channels, rest = divmod(network.channels, network.heads)
    if rest:
        yield KeyFault(path, f"expected a multiple of heads = {network.heads}, got {network.channels}")
    elif head_channels % 4:
        wanted = "expected channels / heads to be a multiple of 4 (rotary embedding)"
        yield KeyFault(path, f"{wanted}, got {head_channels}")
    elif network.rope3d and network.depth and head_channels < _LEAST_3D:
        wanted = f"expected channels / heads to be at least {_LEAST_3D} with rope3d"
        yield KeyFault(path, f"{wanted}, got {head_channels}")
    for mismatch in BACKBONES[network.patch_embed].mismatches(network):
        wanted = f"expected {mismatch.field} = {mismatch.expected} for this backbone"
        yield KeyFault(("model", "patch_embed"), f"{wanted}, got {mismatch.actual}")


def _check_output(model: ModelConfig) -> Iterator[KeyFault]:
    network, output = model.network, model.output
    if model.image_width % network.patch_size:
        wanted = f"expected a multiple of patch_size = {network.patch_size}"
        yield KeyFault(("model", "image_width"), f"{wanted}, got {model.image_width}")
    if list(output.layers) != sorted(set(output.layers)):
        yield KeyFault(("model", "layers"), "expected ascending numbers without repeats")
    if network.depth == 0:
        yield from _check_patches_only(output)
    elif max(output.layers) >= network.depth:
        wanted = f"expected 0 to {network.depth - 1} (depth - 1)"
        yield KeyFault(("model", "layers"), f"{wanted}, got {max(output.layers)}")
    yield from _check_tokens(model)

    yield from _check_kinds(model)


def _check_kinds(model: ModelConfig) -> Iterator[KeyFault]:
    path, network, outputs = ("model", "outputs"), model.network, model.outputs
    if len(set(outputs)) != len(outputs):
        yield KeyFault(path, "expected each kind at most once")
    derived = [kind.value for kind in outputs if kind is not OutputKind.FEATURES]
    if network.depth == 0:
        if derived:
            yield KeyFault(path, f"expected features alone with depth = 0, got {', '.join(derived)}")
        return
    deepest = network.dense_head.layers[-1]
    if MAP_KINDS.intersection(outputs) and deepest >= network.depth:
        yield KeyFault(
            path,
            f"depth and points are computed from layers {', '.join(map(str, network.dense_head.layers))}, but depth = "
            f"{network.depth} has layers 0 to {network.depth - 1}",
            f"set depth = {deepest + 1} or more, or leave them out of outputs",
        )
    if OutputKind.POSE in outputs and 2 * network.channels % network.camera_head.heads:
        wanted = f"expected a multiple of {network.camera_head.heads} for 2 x channels (the camera head's heads)"
        yield KeyFault(("model", "channels"), f"{wanted}, got {2 * network.channels}")


def _check_tokens(model: ModelConfig) -> Iterator[KeyFault]:
    network, output = model.network, model.output
    if len(set(output.tokens)) != len(output.tokens):
        yield KeyFault(("model", "tokens"), "expected each group at most once")
    if TokenGroup.REGISTERS in output.tokens and not network.register_tokens and network.horizon is None:
        yield KeyFault(("model", "tokens"), "there are no registers to publish with register_tokens = 0")
    columns = model.image_width // network.patch_size
    if TokenGroup.POOLED in output.tokens and output.pool > columns:
        wanted = f"expected at most the image's {columns} columns of patches"
        yield KeyFault(("model", "pool"), f"{wanted}, got {output.pool}")


def _check_patches_only(output: OutputConfig) -> Iterator[KeyFault]:
    # Without blocks the embedding is the only layer, and there are no special tokens.
    if output.layers != (0,):
        wanted = "expected [0] with depth = 0 (the patch embedding)"
        yield KeyFault(("model", "layers"), f"{wanted}, got {list(output.layers)}")
    others = [group.value for group in output.tokens if group not in PATCH_GROUPS]
    if others:
        yield KeyFault(("model", "tokens"), f"expected patch or pooled with depth = 0, got {', '.join(others)}")
