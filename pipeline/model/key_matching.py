"""Matches the weights in a file with the network's, key by key. If any key differs, the error names the differences."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from ..errors import CheckpointError
from .backbones import BACKBONES, find_backbone
from .file_keys import LINGBOT_MAP_KEYS, FileKeys
from .mismatch_hints import AGGREGATOR, hint_for_backbone, hint_for_checkpoint
from .network import Network
from .weight_files import read_state_dict
from .weight_paths import shard_hint

BACKBONE = "patch_embed."
"""Prefix of the backbone's keys."""

MAX_NAMED_KEYS = 10
"""Maximum number of keys that an error message lists."""


@dataclass(frozen=True, slots=True)
class MatchedKeys:
    """A file's tensors under the network's names.

    Attributes:
        prefix: the prefix that every key of the file has before the network's name, such as `module.`; may be empty.
        tensors: the file's tensors by their keys without this prefix.
        found: the tensors that belong to the network, by the network's names, and those that belong to nothing known.
    """

    prefix: str
    tensors: Mapping[str, Tensor]
    found: dict[str, Tensor]


def checkpoint_weights(model: Network, path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield names and values, in the file's number format, for all of a model's weights.

    The file is a bare network, or a full checkpoint that has the network under `aggregator.`; the weights of heads are
    skipped. All keys may share a prefix, such as `module.`. A value is released once it has been yielded.

    Raises:
        CheckpointError: the file cannot be read, or keys are missing, unexpected, of the wrong shape or not
            floating-point; the message lists up to ten.
    """
    file_keys = model.file_keys
    wanted = {name: (file_keys.key(name), value) for name, value in model.state_dict().items()}
    tensors = file_keys.cleaned(read_state_dict(path))
    found = match_checkpoint(dict(wanted.values()), tensors, path, file_keys).found
    return ((name, found.pop(key)) for name, (key, _) in wanted.items())


def match_checkpoint(
    wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path, file_keys: FileKeys = LINGBOT_MAP_KEYS
) -> MatchedKeys:
    """Match the tensors of the file at `path` with a network's state dict; raises what `checkpoint_weights` raises.

    Args:
        wanted: the network's state dict, by the keys of its files.
        tensors: the file's tensors, cleaned.
        path: the file, for messages.
        file_keys: how such files name the weights.
    """
    heads = [head for head in file_keys.heads if any(name.startswith(head) for name in wanted)]
    skipped = tuple(head for head in file_keys.heads if head not in heads)
    matched = _match(wanted, tensors, partial(_network_keys, skipped=skipped, unused=file_keys.unused))
    absent = {head: kind for head, kind in file_keys.heads.items() if head in heads}
    absent = {head: kind for head, kind in absent.items() if not any(name.startswith(head) for name in matched.found)}
    missing = [name for name in wanted if name not in matched.found]
    if absent and all(name.startswith(tuple(absent)) for name in missing):
        raise CheckpointError(_without_heads(path, absent))
    _check_keys(path, wanted, matched, hint_for_checkpoint(wanted, matched.found))
    return matched


def backbone_weights(model: Network, path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield names and values for a model's patch embedding, from a file that the backbone's authors released.

    Raises:
        CheckpointError: the file cannot be read; keys are missing, unexpected or of the wrong shape, of which the
            message lists up to ten, with what the file looks like; or the backbone has no released weights.
    """
    backbone = find_backbone(model.network.patch_embed)
    if backbone.release is None:
        raise CheckpointError(f"checkpoint {path}: patch_embed {backbone.name!r} has no released weights to load")
    builder = backbone.load()
    wanted = {name: value for name, value in model.state_dict().items() if name.startswith(BACKBONE)}

    def named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {BACKBONE + name: value for name, value in builder.from_release(tensors).items()}

    matched = _match(wanted, read_state_dict(path), named)
    _check_keys(path, wanted, matched, hint_for_backbone(backbone, matched.tensors))
    found = matched.found
    return ((name, found.pop(name)) for name in wanted)


def _match(
    wanted: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    named: Callable[[Mapping[str, Tensor]], dict[str, Tensor]],
) -> MatchedKeys:
    # Strip the prefix after which the most wanted keys are found, if these are most of all wanted keys; else strip
    # nothing.
    best = MatchedKeys("", tensors, named(tensors))
    most = max(len(best.found.keys() & wanted.keys()), len(wanted) // 2)
    for prefix in _common_prefixes(tensors):
        stripped = {name.removeprefix(prefix): value for name, value in tensors.items()}
        matched = MatchedKeys(prefix, stripped, named(stripped))
        if (count := len(matched.found.keys() & wanted.keys())) > most:
            best, most = matched, count
    return best


def _common_prefixes(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    # `module.`, `module._orig_mod.` and so on, as far as all keys have them in common.
    prefix = ""
    for part in min(tensors, default="").split(".")[:-1]:
        prefix += f"{part}."
        if f"{part}." == AGGREGATOR or not all(name.startswith(prefix) for name in tensors):
            return
        yield prefix


def _without_heads(path: Path, heads: Mapping[str, str]) -> str:
    named = " and ".join(f"no {head}* tensors, which the output {kind} needs" for head, kind in heads.items())
    instead = "; clients compute points from depth and pose" if "point_head." in heads else ""
    return f"checkpoint {path} has {named}: remove it from model.outputs{instead}"


def _network_keys(tensors: Mapping[str, Tensor], skipped: tuple[str, ...], unused: frozenset[str]) -> dict[str, Tensor]:
    is_full = any(name.startswith(AGGREGATOR) for name in tensors)
    prefix = AGGREGATOR if is_full else ""
    own = {name.removeprefix(prefix): value for name, value in tensors.items() if not name.startswith(skipped)}
    releases = (backbone.release for backbone in BACKBONES.values() if backbone.release is not None)
    unused |= {BACKBONE + key for release in releases for key in release.unused}
    return {name: value for name, value in own.items() if name not in unused}


def _check_keys(path: Path, wanted: Mapping[str, Tensor], matched: MatchedKeys, hint: str) -> None:
    found = matched.found
    missing = [f"missing {name}" for name in wanted if name not in found]
    unexpected = [f"unexpected {matched.prefix}{name}" for name in found if name not in wanted]
    common = [(name, found[name], value) for name, value in wanted.items() if name in found]
    others = [
        *(
            f"{name} has shape {tuple(its.shape)}, expected {tuple(value.shape)}"
            for name, its, value in common
            if its.shape != value.shape
        ),
        *(
            f"{name} is {its.dtype}, expected a floating-point format"
            for name, its, _ in common
            if not its.dtype.is_floating_point
        ),
    ]
    if missing or unexpected or others:
        prefix = f"all its keys begin with `{matched.prefix}`" if matched.prefix else ""
        hints = "; ".join(filter(None, (shard_hint(path) or hint, prefix)))
        raise CheckpointError(_describe(path, missing, unexpected, others, hints))


def _describe(path: Path, missing: list[str], unexpected: list[str], others: list[str], hints: str) -> str:
    # The file's own keys show what it is, so missing ones leave room for half as many of those.
    room = MAX_NAMED_KEYS - min(len(unexpected), MAX_NAMED_KEYS // 2)
    count = len(missing) + len(unexpected) + len(others)
    named = [*missing[:room], *unexpected, *others][:MAX_NAMED_KEYS]
    more = f"; and {count - len(named)} more" if count > len(named) else ""
    looks = f" ({hints})" if hints else ""
    return f"checkpoint {path} does not fit the network{looks}, {count} keys differ: {'; '.join(named)}{more}"
