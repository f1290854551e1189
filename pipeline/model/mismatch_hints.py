"""Hints for weights that do not fit the network: what the file looks like, and which setting would load it."""

import re
from collections.abc import Mapping

from torch import Tensor

from .backbones import BACKBONES, Backbone

AGGREGATOR = "aggregator."
"""Prefix of the network's keys in a full checkpoint."""

HORIZON = "agg_regator."
"""Prefix of the network's keys in HorizonStream's file."""

_GLOBAL_BLOCK = re.compile(r"global_blocks\.\d{1,4}\.")


def hint_for_checkpoint(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    """Describe a file that was configured as `checkpoint` but does not fit; empty if it is not recognised.

    Args:
        wanted: the network's state dict.
        found: the file's tensors, without the prefix of full checkpoints.
    """
    theirs, mine = (any(key.startswith(HORIZON) for key in keys) for keys in (found, wanted))
    if theirs and not mine:
        return "it looks like HorizonStream: set preset = 'horizonstream'"
    if mine and not theirs and any(_GLOBAL_BLOCK.match(key) for key in found):
        return "it looks like LingBot-Map: set preset = 'lingbot-map'"
    for backbone in BACKBONES.values():
        if backbone.release is not None and backbone.release.marker in found:
            return f"it looks like {backbone.release.name} alone: set backbone_checkpoint"
    return _hint_for_shape(wanted, found)


def hint_for_backbone(backbone: Backbone, found: Mapping[str, Tensor]) -> str:
    """Describe a file that was configured as `backbone_checkpoint` but does not fit; empty if it is not recognised."""
    if any(name.startswith((AGGREGATOR, "frame_blocks.")) for name in found):
        return "it looks like a checkpoint of the whole network: set checkpoint"
    return backbone.load().explain_mismatch(found)


def _hint_for_shape(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    mine, its = _mixers(wanted), _mixers(found)
    if its and len(its) != len(mine):
        return f"it has {len(its)} global blocks, the network has {len(mine)}: is it for another preset or depth?"
    token = "camera_token"
    if token in found and token in wanted and found[token].shape[-1:] != wanted[token].shape[-1:]:
        channels = found[token].shape[-1]
        return f"it has {channels} channels, the network has {wanted[token].shape[-1]}: is it for another preset?"
    if its and its != mine:
        return f"its global blocks are {', '.join(its)}: set mixers"
    return ""


def _mixers(tensors: Mapping[str, Tensor]) -> list[str]:
    # The mixer of each global block, inferred from the names of its weights.
    blocks = {int(name.split(".")[1]) for name in tensors if _GLOBAL_BLOCK.match(name)}
    return ["kda" if f"global_blocks.{block}.attn.A_log" in tensors else "attention" for block in sorted(blocks)]
