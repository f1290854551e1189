"""Presets are read-only and consistent, and a preset of another family needs no more than its entry."""

from dataclasses import replace
from types import MappingProxyType

import pytest
import torch

from retinad.pipeline.config import ModelConfig, NetworkConfig
from retinad.pipeline.model import presets
from retinad.pipeline.model.backbones import BACKBONES
from retinad.pipeline.model.checkpoint import load_model
from retinad.pipeline.model.network import Network
from retinad.pipeline.model.patch_features import PatchFeatures
from retinad.pipeline.model.presets import LINGBOT_MAP, PRESETS, TINY, default_preset


def test_presets_are_read_only_and_consistent() -> None:
    assert set(PRESETS) == {"tiny", "lingbot-map", "horizonstream"}
    for name, preset in PRESETS.items():
        assert preset.name == name
        assert preset.network.channels // preset.network.heads == 64
        assert not BACKBONES[preset.network.patch_embed].mismatches(preset.network)
        assert preset.image_width % preset.network.patch_size == 0
        assert max(preset.layers) < preset.network.depth
    with pytest.raises(TypeError):
        PRESETS["other"] = PRESETS["tiny"]  # type: ignore[index]  # that it is read-only is the test


def test_auto_selects_a_preset_by_the_device() -> None:
    assert default_preset("cpu") is TINY
    assert default_preset("cuda:1") is LINGBOT_MAP


def test_a_preset_of_another_family_is_built_by_its_own_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(PatchFeatures):
        pass

    def build(network: NetworkConfig, dtype: torch.dtype) -> Network:
        return Other(network, dtype)

    other = replace(TINY, name="other", load_builder=lambda: build)
    monkeypatch.setattr(presets, "PRESETS", MappingProxyType({**PRESETS, "other": other}))
    network = NetworkConfig(channels=32, heads=2, depth=1, patch_embed="conv")
    assert type(load_model(ModelConfig(name="other", network=network))[0]) is Other
    assert type(load_model(ModelConfig(name="tiny", network=network))[0]) is not Other
