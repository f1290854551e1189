"""`check --memory` reports for each camera what its stream really allocates, with the sums of the pool."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from retinad.daemon.cli.app import run_command
from retinad.daemon.cli.memory import memory_report
from retinad.daemon.config.load import load_config
from retinad.daemon.exit_codes import ExitCode
from retinad.pipeline.cache.kv_pool import gib
from retinad.pipeline.engine.engine import Engine

from ...pipeline.engine.engine_rig import frame
from ..service_rig import write_config

LINGBOT = '[model]\npreset = "lingbot-map"\ndtype = "bfloat16"\ndevice = "cpu"\n{model}[[camera]]\nname = "a"\n{camera}'
LIVE = 'source = "/dev/video0"\n'


def report_of(folder: Path, camera: str = LIVE, model: str = "", size: tuple[int, int] | None = None) -> str:
    path = folder / "config.toml"
    path.write_text(LINGBOT.format(model=model, camera=camera))
    return memory_report(load_config(path, {}), size, 16 << 30)


def test_a_camera_of_the_released_model_takes_7_gib_and_the_sum_is_shown(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    assert "a: 7.06 GiB\n" in report
    assert "7.06 GiB for 72 frames of 1042 tokens and 256 x 6 tokens of history, each 24 layers" in report
    assert "640x480 (assumed), 518x392 in the model" in report
    assert "weights: 1.70 GiB, 909.1 million parameters; global blocks that run: 24 attention" in report
    assert "a: 6.81 GiB" in report_of(tmp_path, size=(518, 378))


def test_a_hybrid_takes_a_quarter_of_it(tmp_path: Path) -> None:
    report = report_of(tmp_path, model='mixers = ["kda", "kda", "kda", "attention"]\n')
    found = re.search(r"^a: (\d\.\d\d) GiB$", report, re.MULTILINE)
    assert found is not None
    assert float(found[1]) < 2
    assert "for 18 kda layers" in report


def test_the_memory_of_poses_is_a_line_of_its_own(tmp_path: Path) -> None:
    """327 keyframes of 262,144 bytes each."""
    assert "memory of poses" not in report_of(tmp_path)
    assert "memory of poses: 81.8 MiB" in report_of(tmp_path, model='outputs = ["pose"]\n')


@pytest.mark.parametrize(
    ("camera", "size", "said"),
    [
        ('source = "/dev/video0"\nsize = [1280, 720]\n', None, "frames of 1280x720, 518x294"),
        ('source = "synthetic:?width=320&height=240"\n', None, "frames of 320x240, 518x392"),
        ('source = "/dev/video0"\nsize = [1280, 720]\n', (800, 800), "frames of 800x800, 518x518"),
        ('source = "/dev/video0"\ncrop = [8, 8, 320, 240]\n', None, "frames of 320x240, 518x392"),
        ('source = "/dev/video0"\ncrop = [8, 8, 320, 240]\n', (800, 800), "frames of 320x240, 518x392"),
        ('source = "/x.mp4"\nmode = "lossless"\nstream = { run_frames = 8 }\n', None, "7.73 GiB for 79 frames"),
    ],
)
def test_the_size_comes_from_the_option_or_the_config(
    tmp_path: Path, camera: str, size: tuple[int, int] | None, said: str
) -> None:
    assert said in report_of(tmp_path, camera, size=size)


def test_assumed_sizes_are_marked_with_what_to_do(tmp_path: Path) -> None:
    assert "--source-size WIDTHxHEIGHT sets one instead of 640x480\n" in report_of(tmp_path)
    assert "--source-size" not in report_of(tmp_path, 'source = "/dev/video0"\nsize = [640, 480]\n')
    assert "--source-size" not in report_of(tmp_path, size=(640, 480))


@pytest.mark.parametrize(
    ("cameras", "frames"),
    [
        (("", ""), 8),  # the first block of each, never both in one forward pass
        (("stream = { scale_frames = 3 }\n", "stream = { scale_frames = 2 }\n"), 5),
        (("stream = { scale_frames = 3 }\n", "size = [1280, 720]\nstream = { scale_frames = 2 }\n"), 3),
        (('mode = "lossless"\nstream = { run_frames = 20 }\n', ""), 20),
    ],
)
def test_the_total_includes_the_largest_forward_pass(tmp_path: Path, cameras: tuple[str, str], frames: int) -> None:
    first, second = (f'source = "/dev/video0"\n{keys}' for keys in cameras)
    assert f" for {frames} frames\ntotal: " in report_of(tmp_path, f'{first}[[camera]]\nname = "b"\n{second}')


def test_the_report_names_the_device_and_says_whether_the_sum_fits(tmp_path: Path) -> None:
    """On a machine without the service's GPU the sums are those of float32, twice as large."""
    lines = report_of(tmp_path).splitlines()
    assert lines[0] == "for cpu in bfloat16 (model.device, model.dtype)"
    assert re.fullmatch(r"total: 9\.\d\d GiB, which fits the 16\.00 GiB of this machine", lines[-1])
    lines = report_of(tmp_path, 'source = "0"\n[[camera]]\nname = "b"\nsource = "1"\n').splitlines()
    assert re.fullmatch(r"total: 16\.\d\d GiB, which is MORE than the 16\.00 GiB of this machine", lines[-1])
    config = load_config(tmp_path / "config.toml", {"RETINAD_MODEL__DTYPE": "float32"})
    assert "--card SIZE" in memory_report(config, None, 1).splitlines()[-1]
    on_gpu = replace(config, model=replace(config.model, device="cuda:0"))
    assert memory_report(on_gpu, None, 20 << 30).endswith(
        "does NOT fit the 20.00 GiB of cuda:0 (at most 18.00 GiB without the forward pass)"
    )


def test_a_card_that_is_not_here_is_computed_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[[camera]]\nname = "a"\n{LIVE}[publish]\nendpoints = ["ipc://{tmp_path}/s"]\n')

    def lines(*options: str, model: str = "") -> list[str]:
        text = path.read_text()
        path.write_text(f"{text}[model]\n{model}")
        code = run_command(["check", str(path), "--memory", *options])
        path.write_text(text)
        captured = capsys.readouterr()
        assert code == ExitCode.OK, captured.err
        return captured.out.splitlines()

    whole = lines("--card", "8GB")
    assert whole[0] == "for the card in bfloat16 (--card, model.dtype)"
    assert "909.1 million parameters" in whole[1]  # the preset of a GPU
    assert whole[-1].endswith("does NOT fit the 7.45 GiB of the card (at most 6.71 GiB without the forward pass)")
    assert "which fits the 24.00 GiB of the card" in lines("--card", "24GiB", model='device = "cpu"\n')[-1]
    half = lines("--card", "8GB", model='memory_dtype = "float8_e4m3fn"\n')
    assert ("a: 7.06 GiB" in whole, "a: 3.53 GiB" in half) == (True, True)


@pytest.mark.parametrize("size", ["8", "x", "8TB", "0GB", ""])
def test_the_size_of_a_card_has_a_number_and_a_unit(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check", "/none.toml", "--memory", "--card", size]
    assert run_command(arguments) == (ExitCode.CONFIG if size == "8" else ExitCode.USAGE)
    assert run_command(["check", "--card", "8GB"]) == ExitCode.USAGE


def test_a_network_without_blocks_has_no_memory_and_no_sum_of_zeros(tmp_path: Path) -> None:
    report = report_of(tmp_path, model="depth = 0\n")
    assert "memory: none" in report
    assert "0 layers" not in report


@pytest.mark.parametrize("mixers", ['["attention"]', '["kda", "attention"]'])
def test_the_estimate_is_what_the_engine_allocates(tmp_path: Path, mixers: str) -> None:
    camera = '[[camera]]\nname = "a"\nsource = "synthetic:?width=64&height=48"\nstream = { epoch_frames = 9 }\n'
    config = load_config(write_config(tmp_path, camera, model=f"mixers = {mixers}"), {})
    with Engine(config.model) as engine:
        engine.open_stream("a", config.cameras[0].stream, config.cameras[0].resize)
        for number in range(3):
            engine.step([frame("a", number)])
        (stream,) = engine.statistics().streams
    assert f"    memory: {gib(stream.nbytes)} for" in memory_report(config, None, 1 << 30)


@pytest.mark.parametrize("size", ["1920", "0x0", "1x9999", "axb"])
def test_an_invalid_size_is_refused(tmp_path: Path, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(write_config(tmp_path, '[[camera]]\nname = "a"\nsource = "synthetic:"\n'))
    assert run_command(["check", config, "--memory", "--source-size", size]) == ExitCode.USAGE
    assert "--source-size" in capsys.readouterr().err
    assert run_command(["check", config, "--source-size", "320x200"]) == ExitCode.USAGE
    assert run_command(["check", config, "--memory", "--source-size", "320x200"]) == ExitCode.OK
    assert "a: " in capsys.readouterr().out
