"""Names of config keys: writes key paths, finds the key that sets a field of the pipeline, and knows renamed keys."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from retinad.pipeline.config_diff import Difference
from retinad.pipeline.errors import PublishError, StateError

KeyPath = tuple[str | int, ...]
"""Keys and list indices from the top of the file down to a value."""

RENAMED: Mapping[str, str] = MappingProxyType({})
"""The new name of each renamed key, by its old name. Names are dotted and lack indices, as in `camera.fps`."""

_PARTS = re.compile(r"^(?:model\.)?(?:network|output)\.")
"""Parts of the model's config that are not tables in the file: `model.output.pool` is set by the key `model.pool`."""

_HEADS = re.compile(r"^(?:model\.)?network\.(?:camera_head|dense_head|horizon)\b")
"""The shapes of heads and of HorizonStream's parts, which only a preset sets."""

_NAMES = {
    "model.name": "model.preset",
    "model_name": "model.preset",
    "image_width": "model.image_width",
    "outputs": "model.outputs",
    "view.calibration": "intrinsics",
    "view.mask": "mask",
    "view.mask_fill": "mask_fill",
    "view.metres_per_unit": "metres_per_unit",
    "view.known_distance": "known_distance",
    "view": "intrinsics, mask or mask_fill",
    "log.level": "service.log_level",
    "log.form": "service.log_format",
    "model.weights": "weights",
    "model.layers": "global blocks that run",
}
"""The names to show for fields whose key has another name, and for fields that have no key."""


def show_key(path: KeyPath) -> str:
    """Write a key path in the form `camera[0].source`. Keys that TOML would quote are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else json.dumps(part))
    return text


def config_key(field: str) -> str:
    """The config key that sets a field of the pipeline's config: `model.pool` for `model.output.pool`."""
    key = field.replace("output.dtype", "output.output_dtype").replace("stream.retention.", "stream.")
    return "model.preset" if _HEADS.match(key) else _NAMES.get(key, _PARTS.sub("model.", key))


def show_differences(differences: Iterable[Difference]) -> str:
    """Describe changed settings by their keys: `stream.window was 8, is 16; model.pool was 4, is 2`."""
    return "; ".join(f"{config_key(difference.field)} {difference.change}" for difference in differences)


def error_text(error: Exception) -> str:
    """The text of an error of the pipeline, in which the settings at fault are named by their config keys."""
    if isinstance(error, StateError) and error.differences:
        return f"{error.message}: {show_differences(error.differences)}"
    if isinstance(error, PublishError) and error.field is not None:
        return f"{config_key(f'publish.{error.field}')}: {error}"
    return str(error)


def new_name(key: str) -> str | None:
    """The new name of a renamed dotted key, else None. A camera's `stream` table has the same keys as `[stream]`."""
    in_stream = key.removeprefix("camera.") if key.startswith("camera.stream.") else key
    return RENAMED.get(key) or RENAMED.get(in_stream)


def suggest(word: str, known: Sequence[str]) -> str:
    """`did you mean ...?` with the known word nearest to `word`, or an empty string if none is near.

    Every part of the word must be near: `log_file` is not a misspelt `log_level`.
    """
    plain = word.lower().replace("-", "_")
    near = difflib.get_close_matches(plain, [name.lower() for name in known], n=5, cutoff=0.6)
    near = [name for name in near if _is_misspelt(plain, name)][:1]
    matches = [name for name in known if name.lower() in near]
    return f"did you mean `{matches[0]}`?" if matches else ""


def _is_misspelt(word: str, name: str) -> bool:
    parts, others = word.split("_"), name.split("_")
    if len(parts) != len(others):
        return _ratio(word, name) >= 0.75
    return all(_ratio(part, other) >= 0.65 for part, other in zip(parts, others, strict=True))


def _ratio(word: str, other: str) -> float:
    return 1.0 if word == other else difflib.SequenceMatcher(None, word, other).ratio()
