"""`retinad bench` measures what it says it does: filled windows, steady records, and like with like."""

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from retinad.daemon.bench.end_to_end import summarize
from retinad.daemon.bench.engine import covered, measure_engine
from retinad.daemon.bench.plan import BenchPlan
from retinad.daemon.bench.results import BenchError, BenchReport, read_report, write_report
from retinad.daemon.bench.subscriber import Heard, Noticed
from retinad.daemon.bench.table import differences, print_comparison
from retinad.daemon.cli.app import run_command
from retinad.daemon.config.load import load_config
from retinad.daemon.exit_codes import ExitCode
from retinad.pipeline.config import RetentionConfig, StreamConfig
from retinad.pipeline.engine.engine import Engine, Outcome
from retinad.pipeline.engine.model_runner import WhileDeviceBusy
from retinad.pipeline.frames import Frame, FrameFailure

from ..service_rig import write_config

CAMERA = '[[camera]]\nname = "a"\nsource = "synthetic:"\n'


def retinad_bench(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "CACHE_DIRECTORY": f"{folder}/cache"}
    environment |= {"RETINAD_MODEL__DEVICE": "cpu", "RETINAD_MODEL__IMAGE_WIDTH": "112"}
    command = [sys.executable, "-m", "retinad.daemon", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=55, check=False)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> BenchReport:
    """What the command measures of the preset for CPUs; checked on its way in."""
    folder = tmp_path_factory.mktemp("bench")
    path = folder / "report.json"
    result = retinad_bench(folder, "--preset", "tiny", "--steps", "10", "--size", "160x120", "--json", str(path))
    assert result.returncode == 0, result.stderr
    assert "RANDOM: the features mean nothing" in result.stdout
    assert "windows filled by 12 steps, then 10 measured" in result.stdout
    return read_report(path)


@pytest.fixture
def plan(tmp_path: Path) -> BenchPlan:
    return BenchPlan(load_config(write_config(tmp_path, CAMERA), {}), cameras=2, size=(64, 48), steps=4)


def test_the_tiny_preset_is_measured_on_a_cpu(report: BenchReport) -> None:
    settings, engine, path = report.settings, report.engine, report.path
    assert (settings.model, settings.device, settings.cameras, settings.size) == ("tiny", "cpu", 1, (160, 120))
    assert (settings.weights, settings.mixers) == ("random:0", ("attention",) * 4)
    assert (engine.fill_steps, engine.steps, engine.gpu_busy, engine.epochs_begun) == (12, 10, None, 0)
    assert 0 < engine.step_ms.p50 <= engine.step_ms.p95 <= engine.step_ms.p99
    assert engine.steps_per_s == engine.frames_per_s, "one camera"
    # A step is whole before the next begins: their rate is that of their mean, which lies between fastest and slowest.
    assert engine.steps_per_s > 0.5 / (engine.step_ms.p99 / 1e3)
    assert engine.state_bytes > 1 << 20
    assert engine.peak_bytes > 64 << 20, "the process holds torch at the least"
    assert path.captured == 22 == path.published + path.dropped + path.failed
    assert (path.failed, path.lost) == (0, 0)
    assert path.capture_to_receive_ms.p50 >= path.capture_to_publish_ms.p50 > path.outside_model_ms.p50 > 0
    assert 0 < path.frames_per_s < 31


def test_an_earlier_run_stands_beside_this_one(report: BenchReport, tmp_path: Path) -> None:
    before = replace(report, engine=replace(report.engine, frames_per_s=report.engine.frames_per_s / 2))
    write_report(before, tmp_path / "before.json")
    console = Console(file=io.StringIO(), width=200)
    print_comparison(read_report(tmp_path / "before.json"), report, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    (frames,) = (line for line in text.splitlines() if line.split()[:2] == ["engine", "frames"])
    assert frames.split()[-1] == "2.000"
    assert "NOT THE SAME" not in text


def test_different_work_is_not_compared_in_silence(report: BenchReport) -> None:
    stream = StreamConfig(window=9, retention=RetentionConfig(camera_only=True))
    versions = dict(report.machine.versions) | {"torch": "1.0"}
    before = replace(
        report,
        settings=replace(
            report.settings, cameras=8, dtype="bfloat16", stream=stream, tokens=("camera", "pooled"), fps=2.0
        ),
        machine=replace(report.machine, versions=versions),
        path=replace(report.path, fps=1.0),
    )
    console = Console(file=io.StringIO(), width=200)
    print_comparison(before, report, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "NOT THE SAME SETTINGS" in text
    for line in (
        "cameras: 8 -> 1",
        "dtype: bfloat16 -> float32",
        "window: 9 -> 8",
        "camera_only: true -> false",
        "tokens: [camera, pooled] -> [camera, patch",
        "fps: 2.0 -> none",
        "torch: 1.0 -> ",
        "of the path: 1 -> ",
    ):
        assert line in text


def test_other_mixers_are_one_difference(report: BenchReport) -> None:
    settings = report.settings
    hybrid = replace(settings.network, mixers=("kda", "attention"))
    before = replace(settings, network=hybrid, mixers=hybrid.global_mixers)
    assert [line.partition(":")[0] for line in differences(before, settings)] == ["mixers"]


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"settings": 1}', b'{"x":' * 50_000])
def test_what_is_no_report_is_refused_before_anything_is_measured(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BenchError, match=r"before\.json (cannot be read|is no report)"):
        read_report(path)


def test_windows_are_full_when_the_measurement_begins(plan: BenchPlan) -> None:
    keyframes: list[list[int]] = []

    class Watched(Engine):
        def step(self, frames: Sequence[Frame], while_device_busy: WhileDeviceBusy | None = None) -> list[Outcome]:
            keyframes.append([stream.keyframes for stream in self.statistics().streams])
            return super().step(frames, while_device_busy)

    with Watched(plan.config.model) as engine:
        result = measure_engine(engine, plan)
        assert engine.statistics().streams == (), "its streams are closed"
    stream = plan.stream
    assert len(keyframes) == result.fill_steps + result.steps
    assert keyframes[result.fill_steps] == [stream.scale_frames + stream.window] * 2
    assert min(keyframes[result.fill_steps - 1]) < stream.scale_frames + stream.window


@pytest.mark.parametrize(
    ("stream", "window_full", "steps"),
    [
        (StreamConfig(), True, 72),
        (StreamConfig(keyframe_interval=3), True, 200),
        (StreamConfig(), False, 8),
        (StreamConfig(epoch_frames=40), True, 40),
    ],
)
def test_the_steps_that_fill_a_stream(plan: BenchPlan, stream: StreamConfig, window_full: bool, steps: int) -> None:
    camera = replace(plan.config.cameras[0], stream=stream)
    assert replace(plan, config=replace(plan.config, cameras=(camera,)), window_full=window_full).fill_steps == steps


def test_a_frame_that_fails_voids_the_measurement(plan: BenchPlan) -> None:
    class Failing(Engine):
        def step(self, frames: Sequence[Frame], while_device_busy: WhileDeviceBusy | None = None) -> list[Outcome]:
            return [FrameFailure(frame.stamp, "no room") for frame in frames]

    with Failing(plan.config.model) as engine, pytest.raises(BenchError, match="bench0 gave no features: no room"):
        measure_engine(engine, plan)


def noticed(camera: str, frame: int, receive_s: float, *, model_us: int = 7000, warmup: bool = False) -> Noticed:
    return Noticed(camera, 0, frame, warmup, round(receive_s * 1e9), 10_000.0, 11_000.0, 1000, 500, model_us, 200)


def heard(records: Sequence[Noticed]) -> Heard:
    return Heard(tuple(records), lost=0, captured=9, published=8, dropped=1, failed=0)


def test_only_records_of_the_time_when_all_cameras_ran_full_are_counted(plan: BenchPlan) -> None:
    early = [noticed("bench0", 1, 0.0, warmup=True), noticed("bench0", 4, 0.1), noticed("bench1", 3, 0.2)]
    both = [noticed("bench1", 4, 0.3), noticed("bench0", 5, 0.4), noticed("bench1", 5, 0.5)]
    result = summarize(heard([*early, *both, noticed("bench1", 6, 9.0)]), plan, fps=30.0)
    assert result.records == 2, "after bench1 was full, before bench0 was over"
    assert result.frames_per_s == pytest.approx(10.0)
    assert (result.outside_model_ms.p50, result.capture_to_receive_ms.p99, result.queue_ms.p95) == (3.0, 11.0, 1.0)
    assert (result.captured, result.published, result.dropped) == (9, 8, 1)


def test_too_few_records_are_no_measurement(plan: BenchPlan) -> None:
    with pytest.raises(BenchError, match=r"9 frames 8 were published \(1 dropped.*1 received: too few"):
        summarize(heard([noticed("bench0", 9, 0.0)]), plan, fps=30.0)


def test_time_that_several_kernels_share_counts_once() -> None:
    assert covered([]) == 0
    assert covered([(5, 6), (0, 2), (1, 3), (1.5, 2.5), (6, 7)]) == 5


def test_cameras_ask_for_what_a_live_one_gives_or_the_model_can_take(plan: BenchPlan) -> None:
    assert plan.rate(0.001) == 30.0
    assert plan.rate(0.1) == pytest.approx(8.0)
    assert replace(plan, fps=5.0).rate(0.1) == 5.0


def test_what_the_command_line_gets_wrong_has_its_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_command(["bench", "--size", "big"]) == ExitCode.USAGE
    assert "1920x1080" in capsys.readouterr().err
    assert run_command(["bench", "--preset", "nope"]) == ExitCode.CONFIG
    assert "lingbot-map" in capsys.readouterr().err
    missing = str(tmp_path / "before.json")
    assert run_command(["bench", "--preset", "tiny", "--compare", missing]) == ExitCode.UNAVAILABLE
    captured = capsys.readouterr()
    assert (f"{missing} cannot be read" in captured.err, captured.out) == (True, ""), "before anything is measured"
