"""The registry of backbones: one entry is enough to build a network with it and to load its released weights."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from retinad.pipeline.config import ModelConfig, NetworkConfig
from retinad.pipeline.errors import ModelError
from retinad.pipeline.model import backbones, key_matching, mismatch_hints
from retinad.pipeline.model.backbones import BACKBONES, Backbone, Release, build_patch_embed, find_backbone
from retinad.pipeline.model.checkpoint import load_model
from retinad.pipeline.model.patch_embed import PatchEmbedding

NETWORK = NetworkConfig(channels=32, heads=2, depth=1, patch_size=16, patch_embed="mean")


class MeanPatches(PatchEmbedding):
    """The mean of each channel of a patch, times a weight."""

    def __init__(self, channels: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.weight = nn.Parameter(torch.zeros(3, channels))

    def forward(self, images: Tensor) -> Tensor:
        means = nn.functional.avg_pool2d(images, self.patch_size)
        return means.flatten(2).transpose(1, 2) @ self.weight


class MeanBuilder:
    def build(self, network: NetworkConfig, dtype: torch.dtype) -> MeanPatches:
        return MeanPatches(network.channels, network.patch_size)

    def from_release(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name.removeprefix("mean_"): value for name, value in tensors.items() if name != "mean_unused"}

    def explain_mismatch(self, tensors: Mapping[str, Tensor]) -> str:
        return "it looks like a median" if "median" in tensors else ""


MEAN = Backbone("mean", MeanBuilder, channels=32, patch_size=16, release=Release("Mean", marker="mean_weight"))


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = MappingProxyType({**BACKBONES, "mean": MEAN})
    for module in (backbones, key_matching, mismatch_hints):
        monkeypatch.setattr(module, "BACKBONES", entries)


def load(path: Path | None = None, backbone: Path | None = None) -> dict[str, Tensor]:
    model, _ = load_model(ModelConfig(network=NETWORK, checkpoint=path, backbone_checkpoint=backbone))
    return model.state_dict()


def test_released_weights_are_loaded_by_the_entry(tmp_path: Path) -> None:
    weight = torch.randn(3, 32)
    save_file({"mean_weight": weight, "mean_unused": torch.zeros(1)}, tmp_path / "mean.safetensors")
    loaded = load(backbone=tmp_path / "mean.safetensors")
    assert torch.equal(loaded["patch_embed.weight"], weight)
    assert loaded["frame_blocks.0.attn.qkv.weight"].std() > 0


def test_files_that_do_not_fit_are_refused_with_the_hints_of_the_entry(tmp_path: Path) -> None:
    save_file({"mean_weight": torch.zeros(3, 32)}, tmp_path / "mean.safetensors")
    with pytest.raises(ModelError, match="it looks like Mean alone: set backbone_checkpoint"):
        load(tmp_path / "mean.safetensors")
    save_file({"median": torch.zeros(3, 32)}, tmp_path / "median.safetensors")
    with pytest.raises(ModelError, match="it looks like a median"):
        load(backbone=tmp_path / "median.safetensors")


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (NetworkConfig(channels=64, patch_size=16, patch_embed="mean"), "requires channels 32, got 64"),
        (NetworkConfig(channels=32, patch_size=14, patch_embed="mean"), "requires patch size 16, got 14"),
        (NetworkConfig(patch_embed="median"), "unknown patch embedding 'median': expected one of conv, dinov2_vits14"),
    ],
)
def test_a_network_that_does_not_suit_a_backbone_is_refused(network: NetworkConfig, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build_patch_embed(network, torch.float32)


def test_every_entry_is_registered_under_its_name() -> None:
    for name, backbone in BACKBONES.items():
        assert backbone.name == name
        assert find_backbone(name) is backbone
    with pytest.raises(TypeError):
        BACKBONES["other"] = MEAN  # type: ignore[index]  # that it is read-only is the test


def test_the_registries_import_no_torch() -> None:
    """The config is checked against them on machines and at times at which torch would cost a second."""
    script = "import sys\nfrom retinad.pipeline.model import backbones, presets\nprint('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
