"""Weights from a file, matched key by key: exactly the network's tensors, or an error that names what differs."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from ..errors import ModelError
from .backbones import BACKBONES, find_backbone
from .mismatch_hints import AGGREGATOR, hint_for_backbone, hint_for_checkpoint
from .network import Network
from .weight_files import read_state_dict

BACKBONE = "patch_embed."
"""Prefix of the backbone's keys."""

HEADS = ("camera_head.", "depth_head.", "point_head.")
"""Prefixes of keys of a full checkpoint that the network does not use."""

MAX_NAMED_KEYS = 10
"""Keys that an error message lists."""


def checkpoint_weights(model: Network, path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield names and values, in the file's number format, for all of a model's weights.

    The file is a bare network, or a full checkpoint that has the network under `aggregator.`; the weights of heads are
    skipped. A value is released once it has been yielded.

    Raises:
        ModelError: the file cannot be read, or keys are missing, unexpected, of the wrong shape or not floating-point;
            the message lists up to ten.
    """
    found, wanted = _network_keys(read_state_dict(path)), model.state_dict()
    _check_keys(path, wanted, found, hint_for_checkpoint(wanted, found))
    return ((name, found.pop(name)) for name in wanted)


def backbone_weights(model: Network, path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield names and values for a model's patch embedding, from a file that the backbone's authors released.

    Raises:
        ModelError: the file cannot be read; keys are missing, unexpected or of the wrong shape, of which the message
            lists up to ten, with what the file looks like; or the backbone has no released weights.
    """
    backbone = find_backbone(model.network.patch_embed)
    if backbone.release is None:
        raise ModelError(f"checkpoint {path}: patch_embed {backbone.name!r} has no released weights to load")
    wanted = {name: value for name, value in model.state_dict().items() if name.startswith(BACKBONE)}
    tensors = read_state_dict(path)
    found = {BACKBONE + name: value for name, value in backbone.load().from_release(tensors).items()}
    _check_keys(path, wanted, found, hint_for_backbone(backbone, tensors))
    return ((name, found.pop(name)) for name in wanted)


def _network_keys(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    is_full = any(name.startswith(AGGREGATOR) for name in tensors)
    prefix = AGGREGATOR if is_full else ""
    own = {name.removeprefix(prefix): value for name, value in tensors.items() if not name.startswith(HEADS)}
    unused = {BACKBONE + key for backbone in BACKBONES.values() if backbone.release for key in backbone.release.unused}
    return {name: value for name, value in own.items() if name not in unused}


def _check_keys(path: Path, wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], hint: str) -> None:
    problems = [
        *(f"missing {name}" for name in wanted if name not in found),
        *(f"unexpected {name}" for name in found if name not in wanted),
        *(
            f"{name} has shape {tuple(found[name].shape)}, expected {tuple(value.shape)}"
            for name, value in wanted.items()
            if name in found and found[name].shape != value.shape
        ),
        *(
            f"{name} is {found[name].dtype}, expected a floating-point format"
            for name in wanted
            if name in found and not found[name].dtype.is_floating_point
        ),
    ]
    if problems:
        raise ModelError(_describe(path, problems, hint))


def _describe(path: Path, problems: list[str], hint: str) -> str:
    named = "; ".join(problems[:MAX_NAMED_KEYS])
    more = f"; and {len(problems) - MAX_NAMED_KEYS} more" if len(problems) > MAX_NAMED_KEYS else ""
    looks = f" ({hint})" if hint else ""
    return f"checkpoint {path} does not fit the network{looks}, {len(problems)} keys differ: {named}{more}"
