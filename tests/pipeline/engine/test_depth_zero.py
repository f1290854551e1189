"""With depth = 0 the outputs are the patch features of a plain DINOv2, each frame on its own and without delay."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from retinad.pipeline.config import ModelConfig, NetworkConfig, OutputConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.heads import largest_record_bytes
from retinad.pipeline.engine.preprocess import preprocess, resize_geometry
from retinad.pipeline.frames import Features, Flag, TokenGroup, TokenOutput

from ..model.golden import DATA, weight
from .engine_rig import frame, good

NETWORK = NetworkConfig(384, 6, depth=0, patch_embed="dinov2_vits14_reg")
OUTPUT = OutputConfig(layers=(0,), tokens=(TokenGroup.PATCH, TokenGroup.POOLED), pool=2, dtype="float32")
STREAM = StreamConfig(scale_frames=8, keyframe_interval=3, epoch_frames=9)
SIZE = (64, 48)


def released_weights() -> dict[str, Tensor]:
    """The golden embedding in the layout in which DINOv2's authors release theirs."""
    lines = (line.split("\t") for line in (DATA / "keys_dinov2_small.txt").read_text().splitlines())
    shapes = {name: tuple(map(int, shape.split("x"))) for name, shape in lines if name.startswith("patch_embed.")}
    return {name.removeprefix("patch_embed."): weight(name, shape) for name, shape in shapes.items()}


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    save_file(released_weights(), tmp_path / "dino.safetensors")
    backbone = tmp_path / "dino.safetensors"
    return ModelConfig("dino", NETWORK, 56, output=OUTPUT, backbone_checkpoint=backbone)


def plain_dinov2(image: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Patch features [rows, columns, 384] of an image [3, h, w] in [0, 1], in float64, written from the papers."""
    w = {name: value.double() for name, value in weights.items()}
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    image = (image.double() - mean[:, None, None]) / std[:, None, None]
    patches = functional.conv2d(image[None], w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=14)
    rows, columns = patches.shape[2:]
    grid = w["pos_embed"][:, 1:].reshape(1, 37, 37, 384).permute(0, 3, 1, 2)
    patches += functional.interpolate(grid, (rows, columns), mode="bicubic", antialias=True)
    tokens = torch.cat((w["cls_token"] + w["pos_embed"][:, :1], w["register_tokens"], patches.flatten(2).mT), 1)[0]
    for block in range(12):
        part = {name.removeprefix(f"blocks.{block}."): value for name, value in w.items()}
        tokens = tokens + part["ls1.gamma"] * attention(norm(tokens, part, "norm1"), part)
        hidden = functional.gelu(norm(tokens, part, "norm2") @ part["mlp.fc1.weight"].T + part["mlp.fc1.bias"])
        tokens = tokens + part["ls2.gamma"] * (hidden @ part["mlp.fc2.weight"].T + part["mlp.fc2.bias"])
    return norm(tokens, w, "norm")[5:].reshape(rows, columns, 384)


def norm(tokens: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return functional.layer_norm(tokens, (384,), weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-6)


def attention(tokens: Tensor, weights: dict[str, Tensor]) -> Tensor:
    packed = tokens @ weights["attn.qkv.weight"].T + weights["attn.qkv.bias"]
    query, key, value = packed.reshape(-1, 3, 6, 64).permute(1, 2, 0, 3)
    mixed = (query @ key.mT / 8).softmax(-1) @ value
    out: Tensor = mixed.transpose(0, 1).flatten(1) @ weights["attn.proj.weight"].T + weights["attn.proj.bias"]
    return out


def run(config: ModelConfig, count: int = 4) -> list[Features]:
    with Engine(config) as engine:
        for camera in "ab":
            engine.open_stream(camera, STREAM, ResizeMode.CROP)
        engine.warm_up([SIZE])
        steps = [good(engine.step([frame(camera, number) for camera in "ab"])) for number in range(count)]
        assert [len(step) for step in steps] == [2] * count  # no frame waits for others
        assert {stream.nbytes for stream in engine.statistics().streams} == {0}
    return [record for step in steps for record in step]


def test_features_equal_those_of_dinov2_written_from_the_papers(config: ModelConfig) -> None:
    geometry, weights = resize_geometry(SIZE, ResizeMode.CROP, 56, 14), released_weights()
    for number, record in enumerate(run(config)):
        one = frame("ab"[number % 2], number // 2)
        expected = plain_dinov2(preprocess(one.pixels, geometry, torch.device("cpu")), weights).numpy()
        patch, pooled = record.tensors
        assert patch.output == TokenOutput.of(0, TokenGroup.PATCH, (*geometry.grid, 384), "float32")
        assert np.abs(patch.data - expected).max() <= 2e-6 * np.abs(expected).max()
        assert (pooled.name, pooled.data.shape) == ("layer0/pooled", (2, 2, 384))
        np.testing.assert_allclose(pooled.data[0, 1], expected[:2, 2:].mean((0, 1)), atol=1e-5)
        assert patch.data.nbytes + pooled.data.nbytes <= largest_record_bytes(config)


def test_records_say_that_the_weights_are_real_and_the_network_is_stateless(config: ModelConfig) -> None:
    records = run(config, 12)
    assert all(record.flags == frozenset() for record in records)
    assert [record.epoch_frame for record in records[::2]] == list(range(12))
    with Engine(config) as engine:
        assert engine.description.weights.startswith("sha256:")
        assert "random" not in engine.description.weights
        assert engine.description.mixers == ()
        assert engine.description.parameters == sum(
            w.numel() for n, w in released_weights().items() if n != "mask_token"
        )
    with Engine(replace(config, backbone_checkpoint=None)) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP)
        assert good(engine.step([frame("a", 0)]))[0].flags == {Flag.RANDOM_WEIGHTS}


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (OutputConfig(layers=(1,), tokens=(TokenGroup.PATCH,)), "from 0 to 0"),
        (OutputConfig(layers=(0, 1), tokens=(TokenGroup.PATCH,)), "from 0 to 0"),
        (OutputConfig(layers=(0,)), "patch and pooled tokens only"),
        (OutputConfig(layers=(0,), tokens=(TokenGroup.SCALE,)), "patch and pooled tokens only"),
    ],
)
def test_other_layers_and_tokens_are_refused(output: OutputConfig, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Engine(ModelConfig(network=replace(NETWORK, channels=32, heads=2, patch_embed="conv"), output=output))
