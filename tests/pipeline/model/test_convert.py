"""A converted checkpoint has exactly the hybrid network's keys, the source's projections, and a note about itself."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from retinad.daemon.cli.app import run_command
from retinad.daemon.exit_codes import ExitCode
from retinad.pipeline.config import MixerName, ModelConfig, NetworkConfig, ResizeMode
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.errors import ModelError
from retinad.pipeline.model.checkpoint import load_model
from retinad.pipeline.model.convert import NOTE, convert, gate_bias
from retinad.pipeline.model.delta_attention import KimiDeltaAttention

from ..engine.engine_rig import CONFIG, NETWORK, STREAM, frame, good

PATTERN: tuple[MixerName, ...] = ("kda", "kda", "kda", "attention")
DEEP = replace(NETWORK, depth=5)
HYBRID = replace(DEEP, mixers=PATTERN)
HEADS = {"camera_head.token_norm.weight": torch.arange(3.0), "depth_head.count": torch.tensor(7)}
TOKENS = 100.0


def weights(network: NetworkConfig = DEEP) -> dict[str, Tensor]:
    model, _ = load_model(ModelConfig(network=network, seed=3))
    return {name: value.clone() for name, value in model.state_dict().items()}


def converted(folder: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    save_file(tensors, folder / "source.safetensors")
    convert(folder / "source.safetensors", folder / "out.safetensors", DEEP, PATTERN, half_life_tokens=TOKENS)
    return load_file(folder / "out.safetensors")


@pytest.mark.parametrize("prefix", ["", "aggregator.", "module.", "module.aggregator."])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_projections_are_the_sources_rows_and_all_else_is_unchanged(
    tmp_path: Path, prefix: str, dtype: torch.dtype
) -> None:
    wrapper = prefix.removesuffix("aggregator.")
    heads = {wrapper + name: value for name, value in HEADS.items()}
    before = {prefix + name: value.to(dtype) for name, value in weights().items()} | heads
    after = converted(tmp_path, before)
    for block in (0, 1, 2, 4):
        attn = f"{prefix}global_blocks.{block}.attn."
        qkv = torch.cat([after.pop(f"{attn}{part}_proj.weight") for part in "qkv"])
        assert torch.equal(qkv, before[f"{attn}qkv.weight"])
        assert torch.equal(after.pop(f"{attn}o_proj.weight"), before[f"{attn}proj.weight"])
        fresh = {name for name in after if name.startswith(attn)}
        assert len(fresh) == 12
        assert all(after.pop(name).dtype in (dtype, torch.float32) for name in fresh)
        before = {name: value for name, value in before.items() if not name.startswith(attn)}
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) and after[name].dtype == before[name].dtype for name in before)
    assert f"{prefix}global_blocks.3.attn.qkv.weight" in after


def test_the_result_loads_and_runs_as_a_hybrid_and_only_as_that(tmp_path: Path) -> None:

    converted(tmp_path, weights())
    path = tmp_path / "out.safetensors"
    with Engine(replace(CONFIG, network=HYBRID, checkpoint=path)) as engine:
        engine.open_stream("a", STREAM, ResizeMode.CROP)
        features = [one for number in range(4) for one in good(engine.step([frame("a", number)]))]
    assert len(features) == 4
    assert not any("nan" in one.flags for one in features)
    with pytest.raises(ModelError, match=r"missing global_blocks\.0\.attn\.qkv\.weight"):
        load_model(ModelConfig(network=DEEP, checkpoint=path))


def test_a_delta_block_is_initialised_as_documented(tmp_path: Path) -> None:
    """The configured decay by the gate's own formula, a beta of one half, and an output gate of 1."""
    converted(tmp_path, weights())
    model, _ = load_model(ModelConfig(network=HYBRID, checkpoint=tmp_path / "out.safetensors"))
    (layer,) = (module for name, module in model.named_modules() if name == "global_blocks.1.attn")
    assert isinstance(layer, KimiDeltaAttention)
    tokens = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(0))
    rate = layer.A_log.exp().repeat_interleave(16)
    decay = torch.exp(-rate * torch.nn.functional.softplus(layer.f_proj(tokens) + layer.dt_bias))
    # float32 holds a decay near 1 to 6e-8, a hundred steps of it to 6e-6.
    torch.testing.assert_close(decay**TOKENS, torch.full_like(decay, 0.5), rtol=0, atol=2e-5)
    assert torch.equal(layer.b_proj(tokens).sigmoid(), torch.full((1, 8, 2), 0.5))
    gate = layer.g_proj(tokens).sigmoid().view(1, 8, 2, 16) * layer.o_norm.weight
    torch.testing.assert_close(gate, torch.ones_like(gate))
    for conv in (layer.q_conv1d, layer.k_conv1d, layer.v_conv1d):
        assert torch.equal(conv.weight[:, 0], torch.tensor([0.0, 0, 0, 1]).expand(32, 4))
    assert layer.get_parameter("f_proj.0.weight").std() > 0


def test_the_gates_bias_is_the_inverse_of_the_half_life() -> None:
    for tokens in (1.0, 100.0, 64 * 1042.0, 1e7):
        assert math.exp(-math.log1p(math.exp(gate_bias(tokens))) * tokens) == pytest.approx(0.5, rel=1e-6)


def test_the_same_source_yields_the_same_bytes(tmp_path: Path) -> None:
    converted(tmp_path, weights())
    first = (tmp_path / "out.safetensors").read_bytes()
    converted(tmp_path, weights())
    assert (tmp_path / "out.safetensors").read_bytes() == first


def test_the_file_itself_says_that_it_needs_training(tmp_path: Path) -> None:
    converted(tmp_path, weights())
    with safe_open(tmp_path / "out.safetensors", "pt") as file:
        metadata = file.metadata()
    assert NOTE in metadata["retinad"]
    assert "attn.qkv.bias" in metadata["retinad"]
    assert metadata["mixers"] == "kda,kda,kda,attention"
    assert metadata["source"].startswith("sha256:")


# Refusals


def test_keys_that_do_not_fit_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    tensors = weights()
    tensors["global_blocks.0.attn.extra"] = tensors.pop("global_blocks.0.attn.qkv.weight")
    with pytest.raises(ModelError, match=r"missing global_blocks\.0\.attn\.qkv\.weight; unexpected .*attn\.extra"):
        converted(tmp_path, tensors)
    assert [path.name for path in tmp_path.iterdir()] == ["source.safetensors"]


def test_a_pattern_without_delta_blocks_and_a_half_life_of_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one of 5 blocks"):
        convert(tmp_path / "a.safetensors", tmp_path / "b", DEEP, ("attention",), half_life_tokens=1)
    with pytest.raises(ValueError, match="half_life_tokens must be more than 0"):
        convert(tmp_path / "a.safetensors", tmp_path / "b", DEEP, PATTERN, half_life_tokens=0)


def test_the_command_reports_what_is_lost_and_maps_errors_to_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[model]\npreset = "tiny"\nimage_width = 56\nchannels = 32\nheads = 2\ndepth = 5\n'
        'layers = [4]\nmixers = ["kda"]\n'
    )
    save_file(weights(), tmp_path / "source.safetensors")
    line = ["convert", str(tmp_path / "source.safetensors"), "-o", str(tmp_path / "out.safetensors")]
    line += ["--mixers", "kda,kda,kda,attention"]
    assert run_command([*line, "-c", str(config)]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "global blocks 0, 1, 2, 4 are kda" in said
    assert "attn.qkv.bias" in said
    assert "decays by half in 64 frames of 18 tokens" in said
    assert NOTE in said
    assert run_command(line) == ExitCode.CONFIG  # without the config the preset is lingbot-map
    assert "keys differ" in capsys.readouterr().err
    assert run_command([*line[:-1], "attention"]) == ExitCode.USAGE
    assert run_command([*line[:-1], "nope"]) == ExitCode.USAGE


def test_an_interrupted_conversion_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(tensor: Tensor) -> memoryview:
        raise KeyboardInterrupt

    (tmp_path / "config.toml").write_text(
        '[model]\npreset = "tiny"\nimage_width = 56\nchannels = 32\nheads = 2\ndepth = 5\nlayers = [4]\n'
    )
    save_file(weights(), tmp_path / "source.safetensors")
    monkeypatch.setattr("retinad.pipeline.model.convert.tensor_bytes", stop)
    line = ["convert", str(tmp_path / "source.safetensors"), "-o", str(tmp_path / "out.safetensors")]
    line += ["--mixers", "kda", "-c", str(tmp_path / "config.toml")]
    assert run_command(line) == ExitCode.INCOMPLETE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "source.safetensors"]


MEASURE = """
import sys
from pathlib import Path
import torch
from retinad.pipeline.config import NetworkConfig
from retinad.pipeline.model.convert import convert

def held(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) * 1024

import safetensors.torch
small, large = (Path(sys.argv[1]) / name for name in ("small.safetensors", "large.safetensors"))
out = Path(sys.argv[1]) / "out.safetensors"
shape = lambda channels: NetworkConfig(channels=channels, heads=8, depth=4, patch_embed="conv")
convert(small, out, shape(64), ("kda",), half_life_tokens=100)

from retinad.pipeline.files import tensors
most, whole = 0, tensors.tensor_bytes
def watched(tensor):
    global most
    data = whole(tensor)
    most = max(most, held("RssAnon"))
    return data
from retinad.pipeline.model import convert as module
module.tensor_bytes = watched
before = held("RssAnon")
convert(large, out, shape(512), ("kda", "attention"), half_life_tokens=100)
print((most - before) / large.stat().st_size)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_the_weights_are_never_in_memory_together(tmp_path: Path) -> None:
    """Anonymous memory grows by less than a tenth of a file of 100 MB."""
    for channels, name in ((64, "small"), (512, "large")):
        network = NetworkConfig(channels=channels, heads=8, depth=4, patch_embed="conv")
        save_file(weights(network), tmp_path / f"{name}.safetensors")
    run = subprocess.run([sys.executable, "-c", MEASURE, tmp_path], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 0.1
