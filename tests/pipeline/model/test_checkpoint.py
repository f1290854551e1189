"""Weights are exactly the network's or an error, nothing of a file is executed, and loading needs no second copy."""

import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from retinad.pipeline.config import ModelConfig, NetworkConfig
from retinad.pipeline.errors import ModelError
from retinad.pipeline.model.aggregator import Aggregator
from retinad.pipeline.model.checkpoint import load_model

from .golden import DATA, state_dict

SMALL = NetworkConfig(channels=32, heads=2, depth=1, patch_embed="conv")


def weights() -> dict[str, Tensor]:
    return state_dict(Aggregator(SMALL, torch.float32))


def load(path: Path | None, network: NetworkConfig = SMALL, seed: int = 0) -> tuple[Aggregator, str]:
    return load_model(ModelConfig(network=network, checkpoint=path, seed=seed))


def full_checkpoint() -> dict[str, Tensor]:
    heads = ("camera_head.token_norm.weight", "depth_head.norm.weight", "point_head.norm.weight")
    return {f"aggregator.{name}": value for name, value in weights().items()} | {n: torch.ones(3) for n in heads}


@pytest.mark.parametrize("kind", ["safetensors", "pt", "pt under model", "full safetensors", "full pt"])
def test_every_form_of_a_checkpoint_loads_exactly(tmp_path: Path, kind: str) -> None:
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


def test_released_keys_are_the_networks_keys_but_for_the_unused_one() -> None:
    listed = dict(line.split("\t") for line in (DATA / "keys_dinov2_small.txt").read_text().splitlines())
    with torch.device("meta"):
        model = Aggregator(NetworkConfig(384, 6, 2, patch_embed="dinov2_vits14_reg"), torch.float32)
    own = {name: "x".join(map(str, value.shape)) for name, value in model.state_dict().items()}
    assert listed.pop("patch_embed.mask_token")
    assert own == listed


def test_the_unused_mask_token_is_skipped(tmp_path: Path) -> None:
    save_file(weights() | {"patch_embed.mask_token": torch.ones(1, 32)}, tmp_path / "w.safetensors")
    load(tmp_path / "w.safetensors")


def test_keys_that_differ_are_an_error_that_names_ten(tmp_path: Path) -> None:
    """Public fault: 62 missing keys, and the run went on with random numbers."""
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


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(weights() | {"bomb": Bomb()}, tmp_path / "zip.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Bomb()))
    for name in ("zip.pt", "plain.pt"):
        with pytest.raises(ModelError, match=name):
            load(tmp_path / name)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "name", ["none.safetensors", "none.pt", "", "w.bin", "broken.safetensors", "broken.pt", "x.pt"]
)
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    if name.startswith("broken"):
        (tmp_path / name).write_bytes(b"\xff" * 100)
    if name == "x.pt":
        torch.save([1, 2], tmp_path / name)
    with pytest.raises(ModelError, match=name or tmp_path.name):
        load(tmp_path / name)


def test_random_weights_depend_on_the_seed_alone() -> None:
    one, label = load(None, seed=3)
    same, _ = load(None, seed=3)
    other, _ = load(None, seed=4)
    assert label == "random:3"
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.camera_token, other.camera_token)
    # A value pinned, so that `random:3` means the same numbers on every machine and in every version.
    assert one.camera_token[0, 0, 0, 0].item() == pytest.approx(0.6339635, abs=1e-6)


MEASURE = """
import sys
from pathlib import Path
import torch
from retinad.pipeline.config import ModelConfig, NetworkConfig
from retinad.pipeline.model.checkpoint import load_model

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

network = NetworkConfig(channels=512, heads=8, depth=4, patch_embed="conv")
before = peak()
model, _ = load_model(ModelConfig(network=network, checkpoint=Path(sys.argv[1])))
total = sum(float(parameter.sum()) for parameter in model.parameters())  # touches every page
weights = sum(parameter.nbytes for parameter in model.parameters())
print((peak() - before) / weights)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's count of peak memory")
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
    run = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True)
    assert float(run.stdout) <= 1.15
