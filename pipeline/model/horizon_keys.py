"""How the released file of HorizonStream names the weights.

A key may have prefixes that training frameworks add. Its network's part begins with `agg_regator.`, and the layers of
Kimi Delta Attention have one level more than here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from torch import Tensor

from .file_keys import FileKeys

_WRAPPERS = ("module.", "model.", "state_dict.", "sampler.")
_FAMILY = "horizonstream."
_NETWORK = "agg_regator."
_HEADS = {"camera_head.": "cam_decoder.", "depth_head.": "dpt_decoder.", "scale_head.": "metric_readout_head."}
_DELTA = "global_gla_blocks."


@dataclass(frozen=True, slots=True)
class HorizonKeys(FileKeys):
    """The names in HorizonStream's files."""

    heads: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType(
            {"cam_decoder.": "'pose'", "dpt_decoder.": "'depth'", "metric_readout_head.": "'pose' or 'depth'"}
        )
    )
    unused: frozenset[str] = frozenset(
        _NETWORK + name for name in ("camera_token", "register_token", "patch_embed.mask_token")
    )

    def key(self, name: str) -> str:
        """See `FileKeys`."""
        for ours, theirs in _HEADS.items():
            if name.startswith(ours):
                return theirs + name.removeprefix(ours)
        if name.startswith(_DELTA):
            name = name.replace(".attn.", ".attn.gla.", 1)
        return _NETWORK + name

    def cleaned(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See `FileKeys`. A key that would be there twice keeps its prefixes."""
        found: dict[str, Tensor] = {}
        for key, value in tensors.items():
            name = _stripped(key)
            found[key if name in found else name] = value.flatten() if name.endswith(".A_log") else value
        return found


def _stripped(key: str) -> str:
    name = key
    while (rest := next((name.removeprefix(word) for word in _WRAPPERS if name.startswith(word)), None)) is not None:
        name = rest
    return name.removeprefix(_FAMILY)


HORIZON_KEYS = HorizonKeys()
