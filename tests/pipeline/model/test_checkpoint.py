"""Weights match the network exactly or are refused, code in a file is never executed, and loading needs no copy."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from retinad.pipeline.config import ModelConfig, NetworkConfig
from retinad.pipeline.errors import CheckpointError, ModelError
from retinad.pipeline.model.aggregator import Aggregator
from retinad.pipeline.model.checkpoint import load_model
from retinad.pipeline.model.key_matching import checkpoint_weights
from retinad.pipeline.model.network import FrameNumbers, Network
from retinad.pipeline.model.patch_features import PatchFeatures
from retinad.pipeline.model.random_init import random_weights
from retinad.pipeline.model.weight_files import file_note

from .golden import DATA, aggregator, random_images, state_dict, weight

SMALL = NetworkConfig(channels=32, heads=2, depth=1, patch_embed="conv")


def weights() -> dict[str, Tensor]:
    return state_dict(Aggregator(SMALL, torch.float32))


def load(path: Path | None, network: NetworkConfig = SMALL, seed: int = 0) -> tuple[Network, str]:
    return load_model(ModelConfig(network=network, checkpoint=path, seed=seed))


def listed_keys() -> dict[str, tuple[int, ...]]:
    """Keys and shapes of the released file, as listed in the golden data."""
    lines = (line.split("\t") for line in (DATA / "keys_dinov2_small.txt").read_text().splitlines())
    return {name: tuple(map(int, shape.split("x"))) for name, shape in lines}


def dinov2() -> dict[str, Tensor]:
    """The golden DINOv2 in the form of its release: no prefix, and the token for masked patches."""
    names = {name.removeprefix("patch_embed."): name for name in listed_keys() if name.startswith("patch_embed.")}
    return {short: weight(name, listed_keys()[name]) for short, name in names.items()}


def full_checkpoint() -> dict[str, Tensor]:
    heads = ("camera_head.token_norm.weight", "depth_head.norm.weight", "point_head.norm.weight")
    return {f"aggregator.{name}": value for name, value in weights().items()} | {n: torch.ones(3) for n in heads}


@pytest.mark.parametrize("kind", ["safetensors", "pt", "pt under model", "full safetensors", "full pt"])
def test_every_format_of_a_checkpoint_loads_exactly(tmp_path: Path, kind: str) -> None:
    tensors = full_checkpoint() if kind.startswith("full") else weights()
    path = tmp_path / ("w.safetensors" if kind.endswith("safetensors") else "w.pt")
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save({"model": tensors} if kind.endswith("model") else tensors, path)
    model, label = load(path)
    assert label == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    loaded = model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in weights().items())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_released_keys_are_the_networks_keys_except_the_unused_one() -> None:
    listed = listed_keys()
    with torch.device("meta"):
        model = Aggregator(NetworkConfig(384, 6, 2, patch_embed="dinov2_vits14_reg"), torch.float32)
    own = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert listed.pop("patch_embed.mask_token")
    assert own == listed


def test_the_unused_mask_token_is_skipped(tmp_path: Path) -> None:
    save_file(weights() | {"patch_embed.mask_token": torch.ones(1, 32)}, tmp_path / "w.safetensors")
    load(tmp_path / "w.safetensors")


def test_keys_that_differ_are_an_error_that_names_ten(tmp_path: Path) -> None:
    """Known bug elsewhere: 62 keys were missing, and the run continued with random weights."""
    tensors = weights()
    tensors["camera_token"] = torch.zeros(1, 2, 1, 31)
    tensors["blocks.0.extra"] = torch.zeros(1)
    for name in [name for name in tensors if name.startswith("global_blocks.0.")][:9]:
        del tensors[name]
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "w.safetensors")
    message = str(caught.value)
    assert "11 keys differ" in message
    assert message.count("missing ") == 9
    assert "unexpected blocks.0.extra" in message
    assert "and 1 more" in message


def test_a_wrong_shape_says_both(tmp_path: Path) -> None:
    save_file(weights() | {"camera_token": torch.zeros(1, 2, 1, 31)}, tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match=r"camera_token has shape \(1, 2, 1, 31\), expected \(1, 2, 1, 32\)"):
        load(tmp_path / "w.safetensors")


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch exploded",)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_weights_that_are_not_floating_point_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    """They would be converted silently: quantized numbers without their scale, complex ones without a part."""
    path = tmp_path / "w.safetensors"
    save_file(weights() | {"camera_token": weights()["camera_token"].to(dtype)}, path)
    with pytest.raises(ModelError, match=f"1 keys differ: camera_token is {dtype}, expected a floating-point"):
        load(path)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("form", ["sparse", "csr", "meta", "a number as key"])
def test_a_state_dict_without_plain_numbers_is_refused(tmp_path: Path, form: str) -> None:
    tensors, name = weights(), "frame_blocks.0.attn.qkv.weight"
    value = tensors[name]
    match form:
        case "sparse":
            saved: dict[Any, Tensor] = tensors | {name: value.to_sparse()}
        case "csr":
            saved = tensors | {name: value.to_sparse_csr()}
        case "meta":
            saved = tensors | {name: value.to("meta")}
        case _:
            saved = {**tensors, 7: value}
    torch.save(saved, tmp_path / "w.pt")
    with pytest.raises(ModelError, match="expected a state dict of dense tensors"):
        load(tmp_path / "w.pt")


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(weights() | {"bomb": Bomb()}, tmp_path / "zip.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Bomb()))
    for name in ("zip.pt", "plain.pt"):
        with pytest.raises(ModelError, match=name):
            load(tmp_path / name)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "name", ["none.safetensors", "none.pt", "", "w.bin", "broken.safetensors", "broken.pt", "x.pt", "pipe.pt"]
)
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    if name == "pipe.pt":
        os.mkfifo(tmp_path / name)
    if name.startswith("broken"):
        (tmp_path / name).write_bytes(b"\xff" * 100)
    if name == "x.pt":
        torch.save([1, 2], tmp_path / name)
    with pytest.raises(ModelError, match=name or tmp_path.name):
        load(tmp_path / name)


# DINOv2's own files


DINO = NetworkConfig(384, 6, 2, patch_embed="dinov2_vits14_reg", rope3d=False)
DINO_ALONE = replace(DINO, depth=0)


def load_backbone(path: Path, network: NetworkConfig = DINO_ALONE) -> tuple[Network, str]:
    return load_model(ModelConfig(network=network, backbone_checkpoint=path, seed=7))


def write(tensors: dict[str, Tensor], path: Path, *, old_form: bool = False) -> None:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=not old_form)


@pytest.mark.parametrize("kind", ["w.safetensors", "w.pth", "old w.pth"])
def test_a_released_dinov2_yields_its_patch_features(tmp_path: Path, kind: str) -> None:
    """The golden outputs of a network with this embedding verify the embedding's values."""
    path = tmp_path / kind
    write(dinov2(), path, old_form=kind.startswith("old"))
    model, label = load_backbone(path)
    assert isinstance(model, PatchFeatures)
    assert label == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    whole = aggregator(DINO)
    images = random_images(6, 2, 56, 70)
    with torch.inference_mode():
        (output,) = model(images, FrameNumbers((0, 1), (True, False), (True, True)), NoCache(), (0,))
        expected = whole.patch_embed((images - whole.mean) / whole.std)
    assert (output.layer, output.across) == (0, None)
    assert torch.equal(output.frame, expected)


def test_around_a_backbone_weights_are_random_and_the_name_says_so(tmp_path: Path) -> None:
    write(dinov2(), tmp_path / "w.pth")
    model, label = load_backbone(tmp_path / "w.pth", DINO)
    random, _ = load(None, DINO, seed=7)
    assert label == f"sha256:{hashlib.sha256((tmp_path / 'w.pth').read_bytes()).hexdigest()}+random:7"
    for name, value in model.state_dict().items():
        if name.startswith("patch_embed."):
            assert torch.equal(value, weight(name, tuple(value.shape)))
        else:
            assert torch.equal(value, random.state_dict()[name])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("no registers", "without registers"),
        ("other grid", "256 positions: a grid of 37 x 37"),
        ("whole checkpoint", "set checkpoint"),
        ("conversion", "conversion for another library"),
        ("other depth", "unexpected patch_embed.blocks.12.norm1.weight"),
    ],
)
def test_a_file_that_does_not_fit_the_dinov2_is_refused_with_a_hint(tmp_path: Path, change: str, reason: str) -> None:
    tensors = dinov2()
    match change:
        case "no registers":
            del tensors["register_tokens"]
        case "other grid":
            tensors["pos_embed"] = torch.zeros(1, 257, 384)
        case "whole checkpoint":
            tensors = {f"aggregator.patch_embed.{name}": value for name, value in tensors.items()}
        case "conversion":
            tensors = {"embeddings.cls_token": tensors["cls_token"]}
        case "other depth":
            tensors["blocks.12.norm1.weight"] = torch.zeros(384)
    write(tensors, tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match=reason):
        load_backbone(tmp_path / "w.safetensors")


def test_a_dinov2_given_as_the_whole_checkpoint_is_pointed_out(tmp_path: Path) -> None:
    write(dinov2(), tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match=r"set backbone_checkpoint"):
        load(tmp_path / "w.safetensors", DINO)


def test_a_backbone_file_needs_a_backbone_with_a_release_and_no_checkpoint(tmp_path: Path) -> None:
    write(dinov2(), tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match="'conv' has no released weights"):
        load_backbone(tmp_path / "w.safetensors", SMALL)
    with pytest.raises(ValueError, match="not both"):
        ModelConfig(checkpoint=tmp_path / "a.pt", backbone_checkpoint=tmp_path / "w.safetensors")


class NoCache:
    """A cache that must not be used."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        raise AssertionError

    def attend(self, layer: int, query: Tensor) -> Tensor:
        raise AssertionError


# Random weights, and memory


def test_random_weights_depend_on_the_seed_alone() -> None:
    one, label = load(None, seed=3)
    same, _ = load(None, seed=3)
    other, _ = load(None, seed=4)
    assert label == "random:3"
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    token = one.get_parameter("camera_token")
    assert not torch.equal(token, other.get_parameter("camera_token"))
    # A pinned value: `random:3` means the same numbers on every machine and in every version.
    assert token[0, 0, 0, 0].item() == pytest.approx(0.6339635, abs=1e-6)


MEASURE = """
import sys
from pathlib import Path
import torch
from retinad.pipeline.config import ModelConfig, NetworkConfig
from retinad.pipeline.model.checkpoint import load_model

BACKBONE = NetworkConfig(384, 6, 0, patch_embed="dinov2_vits14_reg")
WHOLE = NetworkConfig(channels=512, heads=8, depth=4, patch_embed="conv")

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

# One-time costs such as imports do not grow with the weights: a small model pays them first. Then the peak so far,
# which compiling bytecode raises, is reset.
small, _ = load_model(ModelConfig(network=NetworkConfig(channels=64, heads=1, depth=1, patch_embed="conv")))
sum(float(parameter.sum()) for parameter in small.parameters())
import safetensors.torch
Path("/proc/self/clear_refs").write_text("5")
path = Path(sys.argv[1])
before = peak()
model, _ = load_model(
    ModelConfig(network=BACKBONE, backbone_checkpoint=path)
    if sys.argv[2] == "backbone"
    else ModelConfig(network=WHOLE, checkpoint=path)
)
total = sum(float(parameter.sum()) for parameter in model.parameters())  # touches every page
weights = sum(parameter.nbytes for parameter in model.parameters())
print((peak() - before) / weights)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_loading_peaks_at_one_copy_of_the_weights(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"w{suffix}"
    with torch.device("meta"):
        model = Aggregator(NetworkConfig(channels=512, heads=8, depth=4, patch_embed="conv"), torch.float32)
    tensors = {name: torch.zeros(value.shape) for name, value in model.state_dict().items()}
    if suffix == ".pt":
        torch.save(tensors, path)
    else:
        save_file(tensors, path)
    assert peak_over_weights(path, "whole") <= 1.15


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("kind", ["w.safetensors", "w.pth", "old w.pth"])
def test_loading_a_backbone_peaks_at_one_copy_of_it(tmp_path: Path, kind: str) -> None:
    write(dinov2(), tmp_path / kind, old_form=kind.startswith("old"))
    assert peak_over_weights(tmp_path / kind, "backbone") <= 1.15


def peak_over_weights(path: Path, what: str) -> float:
    run = subprocess.run([sys.executable, "-c", MEASURE, path, what], capture_output=True, text=True, check=True)
    return float(run.stdout)


def test_a_file_of_other_mixers_or_another_size_is_refused_with_a_hint(tmp_path: Path) -> None:
    network = NetworkConfig(channels=32, heads=2, depth=2, patch_embed="conv")
    hybrid = replace(network, mixers=("kda", "attention"))
    save_file(dict(random_weights(Aggregator(hybrid, torch.float32).state_dict(), 0)), tmp_path / "hybrid.safetensors")
    for other, hint in (
        (network, "its global blocks are kda, attention: set mixers"),
        (replace(hybrid, depth=3), "it has 2 global blocks, the network has 3"),
        (replace(hybrid, channels=64), "it has 32 channels, the network has 64"),
    ):
        with pytest.raises(ModelError, match=hint):
            list(checkpoint_weights(Aggregator(other, torch.float32), tmp_path / "hybrid.safetensors"))


def test_the_note_in_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    for metadata, note in (({"retinad": "not trained"}, "not trained"), ({"format": "pt"}, None), (None, None)):
        save_file({"a": torch.zeros(1)}, path, metadata=metadata)
        assert file_note(path) == note
    torch.save({}, tmp_path / "weights.pt")
    assert file_note(tmp_path / "weights.pt") is None


# Files as training frameworks and model hubs leave them


PREFIXES = ["module.", "_orig_mod.", "model.", "module._orig_mod.", "net.encoder.", "module.aggregator."]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", ["w.safetensors", "w.ckpt"])
def test_a_prefix_that_all_keys_share_is_left_out(tmp_path: Path, prefix: str, name: str) -> None:
    write({prefix + key: value for key, value in weights().items()}, tmp_path / name)
    model, _ = load(tmp_path / name)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in weights().items())


def test_a_prefix_is_left_out_of_a_backbone_and_of_a_full_checkpoint_too(tmp_path: Path) -> None:
    write({f"module.{key}": value for key, value in dinov2().items()}, tmp_path / "dino.pth")
    load_backbone(tmp_path / "dino.pth")
    write({f"module.{key}": value for key, value in full_checkpoint().items()}, tmp_path / "full.pt")
    load(tmp_path / "full.pt")


def test_a_prefix_does_not_hide_what_differs(tmp_path: Path) -> None:
    tensors = {f"module.{key}": value for key, value in weights().items() if key != "camera_token"}
    write(tensors | {"module.spare": torch.zeros(1)}, tmp_path / "w.pt")
    expected = r"\(all its keys begin with `module.`\), 2 keys differ: missing camera_token; unexpected module.spare$"
    with pytest.raises(CheckpointError, match=expected):
        load(tmp_path / "w.pt")


def test_a_prefix_on_a_part_of_the_keys_is_refused_and_shown(tmp_path: Path) -> None:
    tensors = {f"model.{key}": value for key, value in weights().items()}
    write(tensors | {"loss.weight": torch.zeros(1)}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path / "w.pt")
    text = str(caught.value)
    assert text.count("missing ") == text.count("unexpected model.") == 5
    assert "global blocks" not in text  # it has no key that would tell


@pytest.mark.parametrize("inside", [("state_dict",), ("model_state_dict",), ("model", "state_dict")])
def test_a_state_dict_is_found_inside_what_training_saves(tmp_path: Path, inside: tuple[str, ...]) -> None:
    saved: dict[str, object] = dict(weights())
    for name in inside:
        saved = {"epoch": 3, name: saved, "optimizer": {"state": {}}}
    torch.save(saved, tmp_path / "w.pt")
    load(tmp_path / "w.pt")


def test_two_state_dicts_in_one_file_are_refused(tmp_path: Path) -> None:
    torch.save({"model": weights(), "state_dict": weights()}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match="holds `model` and `state_dict`: save one of them alone"):
        load(tmp_path / "w.pt")


def shards(folder: Path, suffix: str = ".safetensors") -> Path:
    """Weights in two shards; the path of their index."""
    index: dict[str, str] = {}
    for number, keys in enumerate((list(weights())[::2], list(weights())[1::2]), start=1):
        name = f"model-0000{number}-of-00002{suffix}"
        write({key: weights()[key] for key in keys}, folder / name)
        index |= dict.fromkeys(keys, name)
    path = folder / f"model{suffix}.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": index}))
    return path


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_shards_are_loaded_by_their_index_and_named_by_all_their_bytes(tmp_path: Path, suffix: str) -> None:
    model, label = load(shards(tmp_path, suffix))
    assert all(torch.equal(model.state_dict()[key], value) for key, value in weights().items())
    content = b"".join(path.read_bytes() for path in sorted(tmp_path.glob(f"*{suffix}")))
    assert label == f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.mark.parametrize(
    "fault", ["one alone", "one missing", "one stale", "a pointer", "elsewhere", "no map", "no json"]
)
def test_a_part_of_the_weights_is_never_loaded(tmp_path: Path, fault: str) -> None:
    path, second = shards(tmp_path), tmp_path / "model-00002-of-00002.safetensors"
    expected = f"its shard {second.name}: "
    match fault:
        case "one alone":
            path, expected = second, "it is shard 2 of 2: set checkpoint to their index, model.safetensors.index.json"
        case "one missing":
            second.unlink()
            expected += "No such file"
        case "one stale":
            save_file({"old": torch.zeros(1)}, second)
            expected = f"{second.name} lacks"
        case "a pointer":
            second.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
            expected += "it is a git-lfs pointer"
        case "elsewhere":
            path.write_text(path.read_text().replace("model-00002", "../model-00002"))
            expected = "it is no index of shards: expected `weight_map`, with a file of the same folder"
        case "no map":
            path.write_text("[]")
            expected = "expected `weight_map`"
        case _:
            path.write_text("weights")
            expected = "not JSON"
    with pytest.raises(CheckpointError, match=expected):
        load(path)


def test_a_single_shard_that_is_the_whole_is_loaded(tmp_path: Path) -> None:
    write(weights(), tmp_path / "model-00001-of-00001.safetensors")
    load(tmp_path / "model-00001-of-00001.safetensors")


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "a git-lfs pointer, not the weights: run `git lfs",
        ),
        ("<!DOCTYPE html><html>sign in</html>", "a web page, not the weights"),
    ],
)
def test_what_is_no_weights_is_named(tmp_path: Path, suffix: str, content: str, expected: str) -> None:
    (tmp_path / f"w{suffix}").write_text(content)
    with pytest.raises(CheckpointError, match=expected):
        load(tmp_path / f"w{suffix}")
