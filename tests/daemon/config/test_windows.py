"""Config of the preset `horizonstream`: its defaults, and the keys that its network cannot follow."""

from pathlib import Path

import pytest

from retinad.daemon.config.load import ConfigError, ServiceConfig, load_config
from retinad.daemon.config.show import show_config
from retinad.pipeline.config import ResizeMode
from retinad.pipeline.frames import TokenGroup
from retinad.pipeline.model.presets import HORIZON_STREAM

HEAD = '[model]\npreset = "horizonstream"\ndevice = "cpu"\n'
CAMERA = '[[camera]]\nname = "a"\nsource = "synthetic:"\n'


def load(folder: Path, text: str) -> ServiceConfig:
    path = folder / "config.toml"
    path.write_text(text)
    return load_config(path, {})


def test_a_config_with_the_preset_alone_has_its_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, HEAD + CAMERA)
    (camera,) = config.cameras
    assert config.model.network == HORIZON_STREAM.network
    assert config.model.output.tokens == (TokenGroup.SCALE, TokenGroup.PATCH)
    assert config.model.output.layers == (4, 11, 17, 23)
    assert camera.stream == HORIZON_STREAM.stream
    assert camera.resize is ResizeMode.FIT
    (note,) = config.notes
    assert "state no licence for its weights" in note
    assert "horizon" not in show_config(config).replace('preset = "horizonstream"', "")


def test_the_first_frames_are_as_many_as_the_window(tmp_path: Path) -> None:
    """So that one key, `window`, sets both; a camera may have a window of its own."""
    text = HEAD + "[stream]\nwindow = 21\n" + CAMERA + '[[camera]]\nname = "b"\nsource = "synthetic:"\nresize = "pad"\n'
    first, second = load(tmp_path, text + "stream = { window = 5 }\n").cameras
    assert (first.stream.window, first.stream.scale_frames) == (21, 21)
    assert (second.stream.window, second.stream.scale_frames) == (5, 5)
    assert second.resize is ResizeMode.PAD


@pytest.mark.parametrize(
    ("model", "stream", "key", "reason"),
    [
        ("register_tokens = 4", "", "model.register_tokens", "the preset horizonstream has no register_tokens"),
        ('mixers = ["kda"]', "", "model.mixers", "has no mixers"),
        ("rope3d = true", "", "model.rope3d", "has no rope3d"),
        ("depth = 12\nlayers = [4, 11]", "", "model.depth", "expected at least 24 for this preset"),
        ('tokens = ["camera", "patch"]', "", "model.tokens", "expected scale, patch or pooled"),
        ('outputs = ["points"]', "", "model.outputs", "this preset has no point head"),
        ('attention = "flashinfer"', "", "model.attention", "flashinfer does not support HorizonStream"),
        ('execution = "fused"', "", "model.execution", "HorizonStream's network has no fused kernels"),
        ("", "scale_frames = 4", "stream.scale_frames", "expected 10 for this preset, or not set, got 4"),
        ("", "keyframe_interval = 2", "stream.keyframe_interval", "expected 1 for this preset"),
        ("", "history_frames = 8", "stream.history_frames", "expected 0 for this preset"),
        ("", "camera_only = true", "stream.camera_only", "keeps nothing of frames that leave the window"),
    ],
)
def test_what_the_network_cannot_follow_is_named(
    tmp_path: Path, model: str, stream: str, key: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"{HEAD}{model}\n[stream]\n{stream}\n{CAMERA}")
    (problem,) = caught.value.problems
    assert key in str(problem)
    assert reason in str(problem)
