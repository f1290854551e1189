"""The heads against outputs of the reference implementation, see `golden.py`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from retinad.pipeline.config import CameraHeadConfig, DenseHeadConfig, ModelConfig
from retinad.pipeline.errors import CheckpointError
from retinad.pipeline.frames import OutputKind
from retinad.pipeline.geometry.pose import intrinsics, world_from_camera
from retinad.pipeline.model.camera_head import CameraHead
from retinad.pipeline.model.checkpoint import blank_model
from retinad.pipeline.model.dense_head import DenseHead, depth_of, points_of
from retinad.pipeline.model.key_matching import match_checkpoint

from .golden import DATA, TOLERANCE, weight

DENSE = DenseHeadConfig(layers=(0, 1, 2, 3), features=32, channels=(16, 32, 48, 48))


class ListMemory:
    """The memory of one stream, as lists of keys and values per layer; the frames of a call see each other."""

    def __init__(self) -> None:
        self.times = torch.zeros(0, dtype=torch.float64)
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if layer in self._kept:
            key, value = (torch.cat(pair) for pair in zip(self._kept[layer], (key, value), strict=True))
        self._kept[layer] = key, value
        query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))  # [1, H, F, D]
        return functional.scaled_dot_product_attention(query, key, value).permute(2, 0, 1, 3)


def filled(head: nn.Module, prefix: str) -> nn.Module:
    """Fill a head with the golden weights."""
    named = {name: weight(f"{prefix}.{name}", tuple(value.shape)) for name, value in head.state_dict().items()}
    head.load_state_dict(named)
    return head


def random_tokens(seed: int, shape: tuple[int, ...]) -> Tensor:
    """float32, from -1 to 1."""
    drawn = np.random.Generator(np.random.PCG64(seed)).random((1, *shape), dtype=np.float32)
    return torch.from_numpy(drawn[0]) * 2 - 1


def agree(found: Tensor, name: str) -> None:
    expected = np.load(DATA / "heads.npz")[name]
    assert found.shape == expected.shape
    worst = np.abs(found.numpy() - expected).max() / np.abs(expected).max()
    assert worst <= TOLERANCE


@pytest.mark.parametrize(("rope", "name"), [(False, "pose_enc"), (True, "pose_enc_rope")])
@torch.inference_mode()
def test_the_camera_head_agrees(rope: bool, name: str) -> None:
    head = filled(CameraHead(256, CameraHeadConfig(heads=2, blocks=2, rounds=3, rope=rope)), "camera_head")
    tokens, memory = random_tokens(7, (9, 5, 256))[:, 0], ListMemory()
    poses = []
    for first, end in ((0, 2), *((number, number + 1) for number in range(2, 9))):
        memory.times = torch.arange(first, end, dtype=torch.float64)
        poses.append(head(tokens[first:end], memory))
    agree(torch.cat(poses), name)


def tokens_of_levels() -> Sequence[Tensor]:
    return [random_tokens(17 + level, (2, 18, 64))[:, 6:] for level in range(4)]


@torch.inference_mode()
def test_the_depth_head_agrees() -> None:
    values, confidence = filled(DenseHead(64, 1, DENSE), "depth_head")(tokens_of_levels(), (3, 4), (56, 42))
    agree(depth_of(values)[..., None], "depth")
    agree(confidence, "depth_conf")


@torch.inference_mode()
def test_the_point_head_agrees() -> None:
    values, confidence = filled(DenseHead(64, 3, DENSE), "point_head")(tokens_of_levels(), (3, 4), (56, 42))
    agree(points_of(values), "points")
    agree(confidence, "points_conf")


def test_matrices_of_the_encoding_agree() -> None:
    golden = np.load(DATA / "heads.npz")
    encodings = golden["pose_enc"] + np.array([0, 0, 0, 0, 0, 0, 1, 1, 1], np.float32)
    seen = 0
    for encoding, pose, camera in zip(encodings, golden["extrinsics"], golden["intrinsics"], strict=True):
        found, matrix = intrinsics(encoding, 56, 42), world_from_camera(encoding)
        assert matrix is not None
        np.testing.assert_allclose(matrix, pose, rtol=0, atol=2e-6)
        if found is not None:  # some of these random fields of view are above 180 degrees
            seen += 1
            np.testing.assert_allclose(found, camera, rtol=2e-5)  # the tangent of a float32 angle
    assert seen


def test_the_released_layout_has_1342_tensors_and_all_are_used(tmp_path: Path) -> None:
    """Shapes alone: the weights are on no device."""
    outputs = (OutputKind.FEATURES, OutputKind.POSE, OutputKind.DEPTH)
    model = blank_model(ModelConfig(outputs=outputs))
    names = model.state_dict()
    heads = [[name for name in names if name.startswith(f"{head}.")] for head in ("camera_head", "depth_head")]
    assert [len(head) for head in heads] == [69, 62]
    file = {name if name in (*heads[0], *heads[1]) else f"aggregator.{name}": value for name, value in names.items()}
    file["aggregator.patch_embed.mask_token"] = torch.zeros(1, 1024)
    assert len(file) == 1342
    assert match_checkpoint(names, file, tmp_path / "released.pt").found.keys() == names.keys()
    without = {name: value for name, value in file.items() if not name.startswith("depth_head.")}
    with pytest.raises(CheckpointError, match=r"no depth_head\.\* tensors, which the output 'depth' needs"):
        match_checkpoint(names, without, tmp_path / "bare.pt")
