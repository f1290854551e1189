"""HorizonStream's released file loads strictly: every key is used, and any other set of keys is refused by name."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from retinad.pipeline.config import ModelConfig, NetworkConfig
from retinad.pipeline.errors import CheckpointError
from retinad.pipeline.frames import OutputKind
from retinad.pipeline.model.checkpoint import blank_model, check_weights, load_model
from retinad.pipeline.model.horizon_keys import HORIZON_KEYS
from retinad.pipeline.model.presets import HORIZON_STREAM

from .golden import DATA
from .horizon_golden import horizon, network

OUTPUTS = (OutputKind.FEATURES, OutputKind.POSE, OutputKind.DEPTH)
UNUSED = {"agg_regator.camera_token": (1, 2, 1, 192), "agg_regator.register_token": (1, 2, 4, 192)}


def config(path: Path | None, outputs: tuple[OutputKind, ...] = OUTPUTS) -> ModelConfig:
    small = ModelConfig(name="horizonstream", network=network(5), image_width=56, outputs=outputs, checkpoint=path)
    return replace(small, output=replace(small.output, layers=(0, 1, 2, 3)))


def released(model: torch.nn.Module) -> dict[str, Tensor]:
    """The model's weights under the released names, with the tensors that inference does not need."""
    tensors = {HORIZON_KEYS.key(name): value.clone() for name, value in model.state_dict().items()}
    return tensors | {name: torch.zeros(shape) for name, shape in UNUSED.items()}


def saved(folder: Path, tensors: Mapping[str, Tensor], wrapper: str | None = None) -> Path:
    path = folder / "HorizonStream.pt"
    torch.save(dict(tensors) if wrapper is None else {wrapper: dict(tensors)}, path)
    return path


def test_all_1549_names_and_shapes_are_those_of_the_released_file() -> None:
    """Shapes alone: the weights are on no device."""
    lines = (DATA / "keys_horizonstream.txt").read_text().splitlines()
    listed = {key: tuple(map(int, shape.split("x"))) for key, shape in (line.split() for line in lines)}
    assert len(listed) == 1549
    assert sum(map(math.prod, listed.values())) == 1_210_901_301
    preset = HORIZON_STREAM
    model = blank_model(ModelConfig(name=preset.name, network=preset.network, outputs=OUTPUTS))
    ours = {HORIZON_KEYS.key(name): tuple(value.shape) for name, value in model.state_dict().items()}
    assert len(ours) + len(HORIZON_KEYS.unused) == 1549
    assert ours == {key: shape for key, shape in listed.items() if key not in HORIZON_KEYS.unused}
    assert HORIZON_KEYS.unused <= listed.keys()


@pytest.mark.parametrize("wrapper", [None, "model", "state_dict"])
@pytest.mark.parametrize("prefix", ["", "module.", "module.model.horizonstream.", "state_dict.sampler."])
def test_a_file_in_the_released_layout_loads_whatever_its_prefix(
    tmp_path: Path, prefix: str, wrapper: str | None
) -> None:
    model = horizon(network(5))
    tensors = {prefix + key: value for key, value in released(model).items()}
    loaded, _ = load_model(config(saved(tmp_path, tensors, wrapper)))
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_prefixes_may_differ_from_key_to_key_and_the_decay_may_have_axes_of_size_1(tmp_path: Path) -> None:
    """Public checkpoints of Kimi Delta Attention store A_log as [1, 1, H, 1]."""
    model = horizon(network(5))
    tensors = {
        ("module." if number % 2 else "horizonstream.") + key: value.view(1, 1, -1, 1) if "A_log" in key else value
        for number, (key, value) in enumerate(released(model).items())
    }
    loaded, _ = load_model(config(saved(tmp_path, tensors)))
    assert torch.equal(
        loaded.state_dict()["global_gla_blocks.1.attn.A_log"], model.state_dict()["global_gla_blocks.1.attn.A_log"]
    )


def test_missing_and_unexpected_keys_are_named_as_in_the_file(tmp_path: Path) -> None:
    tensors = released(horizon(network(5)))
    gone = "agg_regator.frame_blocks.2.attn.gate_proj.bias"
    del tensors[gone]
    tensors["agg_regator.global_gla_blocks.1.attn.gla.extra"] = torch.zeros(3)
    tensors["cam_decoder.token_norm.weight"] = torch.zeros(5)
    with pytest.raises(CheckpointError) as caught:
        check_weights(config(saved(tmp_path, tensors)))
    text = str(caught.value)
    assert "3 keys differ" in text
    assert f"missing {gone};" in text
    assert "unexpected agg_regator.global_gla_blocks.1.attn.gla.extra" in text
    assert "cam_decoder.token_norm.weight has shape (5,), expected (384,)" in text


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    tensors = released(horizon(network(5)))
    tensors["module.agg_regator.pose_token"] = tensors["agg_regator.pose_token"] + 1
    with pytest.raises(CheckpointError, match=r"unexpected module\.agg_regator\.pose_token"):
        check_weights(config(saved(tmp_path, tensors)))


def test_heads_that_no_output_needs_are_skipped_and_absent_ones_are_named(tmp_path: Path) -> None:
    tensors = released(horizon(network(5)))
    assert load_model(config(saved(tmp_path, tensors), (OutputKind.FEATURES,)))[0].camera_head is None
    bare = saved(tmp_path, {key: value for key, value in tensors.items() if not key.startswith("dpt_decoder.")})
    check_weights(config(bare, (OutputKind.FEATURES, OutputKind.POSE)))
    with pytest.raises(CheckpointError, match=r"no dpt_decoder\.\* tensors, which the output 'depth' needs"):
        check_weights(config(bare))


def test_a_file_of_the_other_family_is_recognised(tmp_path: Path) -> None:
    theirs = saved(tmp_path, released(horizon(network(5))))
    lingbot = replace(
        config(theirs), name="lingbot-map", network=NetworkConfig(channels=192, heads=3, depth=4, patch_embed="conv")
    )
    with pytest.raises(CheckpointError, match=r"it looks like HorizonStream: set preset = 'horizonstream'"):
        check_weights(replace(lingbot, outputs=(OutputKind.FEATURES,)))
    ours = {
        f"aggregator.{name}": value
        for name, value in blank_model(replace(lingbot, outputs=OUTPUTS[:1]))
        .to_empty(device="cpu")
        .state_dict()
        .items()
    }
    with pytest.raises(CheckpointError, match=r"it looks like LingBot-Map: set preset = 'lingbot-map'"):
        check_weights(config(saved(tmp_path, ours)))


def test_a_point_head_is_refused() -> None:
    with pytest.raises(ValueError, match="no point head"):
        blank_model(config(None, (OutputKind.POINTS,)))
