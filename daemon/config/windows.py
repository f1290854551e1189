"""Checks what differs for a network that runs window by window (HorizonStream): its shape, outputs and streams."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any

from retinad.pipeline.config import ModelConfig, RetentionConfig
from retinad.pipeline.frames import OutputKind, TokenGroup

from .problems import KeyFault

_FOREIGN = ("register_tokens", "rope3d", "mixers")
"""Keys of `[model]` that shape other networks."""

_ABSENT = (TokenGroup.CAMERA, TokenGroup.REGISTERS)

_FIXED = {"keyframe_interval": 1, "keyframe_flow_px": 0.0, "history_frames": 0}
"""The only values of keys of `[stream]`: every frame enters the window, and a frame that leaves it is gone."""


def window_model_faults(model: ModelConfig, keys: Collection[str]) -> Iterator[KeyFault]:
    """What such a network cannot do of what `[model]` asks for; `keys` are those that are set."""
    horizon = model.network.horizon
    if horizon is None:
        return
    for key in _FOREIGN:
        if key in keys:
            yield KeyFault(("model", key), f"the preset {model.name} has no {key}", "remove it")
    least = max(horizon.memory_layers, default=0) + 1
    if model.network.depth < least:
        wanted = f"expected at least {least} for this preset, whose last kda block is in layer {least - 1}"
        yield KeyFault(("model", "depth"), f"{wanted}, got {model.network.depth}")
    if OutputKind.FEATURES in model.outputs:
        absent = [group.value for group in _ABSENT if group in model.output.tokens]
        if absent:
            yield KeyFault(("model", "tokens"), f"expected scale, patch or pooled for this preset, got {absent[0]}")
    if OutputKind.POINTS in model.outputs:
        reason = "this preset has no point head"
        yield KeyFault(("model", "outputs"), reason, "remove points: clients compute them from depth and pose")


def window_stream_faults(keys: Mapping[str, Any], window: int) -> Iterator[tuple[str, str]]:
    """The keys of `[stream]` that such a network cannot follow, each with the reason.

    Args:
        keys: the keys that are set.
        window: the number of frames of the window.
    """
    for key, value in {"scale_frames": window, **_FIXED}.items():
        if keys.get(key, value) != value:
            yield key, f"expected {value} for this preset, or not set, got {keys[key]}"
    for item in fields(RetentionConfig):
        if item.name in keys:
            yield item.name, "this preset keeps nothing of frames that leave the window: remove it"
