"""`retinad bench` measures what it claims: full windows, steady records, and comparable runs."""

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
from retinad.daemon.bench.engine import measure_engine
from retinad.daemon.bench.plan import BenchPlan
from retinad.daemon.bench.results import BenchError, BenchReport, read_report, write_report
from retinad.daemon.bench.subscriber import Received, RecordTiming
from retinad.daemon.bench.table import differences, print_comparison
from retinad.daemon.cli.app import run_command
from retinad.daemon.config.load import load_config
from retinad.daemon.exit_codes import ExitCode
from retinad.pipeline.config import RetentionConfig, StreamConfig
from retinad.pipeline.engine.engine import Engine, Outcome
from retinad.pipeline.engine.model_runner import WhileDeviceBusy
from retinad.pipeline.frames import Frame, FrameFailure

from ...deadlines import scaled
from ..service_rig import write_config

CAMERA = '[[camera]]\nname = "a"\nsource = "synthetic:"\n'


def retinad_bench(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "CACHE_DIRECTORY": f"{folder}/cache"}
    environment |= {"RETINAD_MODEL__DEVICE": "cpu", "RETINAD_MODEL__IMAGE_WIDTH": "112"}
    command = [sys.executable, "-m", "retinad.daemon", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=scaled(55), check=False)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> BenchReport:
    """The report of the command with the preset for CPUs; its output is checked here."""
    folder = tmp_path_factory.mktemp("bench")
    path = folder / "report.json"
    result = retinad_bench(folder, "--preset", "tiny", "--steps", "10", "--size", "160x120", "--json", str(path))
    assert result.returncode == 0, result.stderr
    assert "RANDOM: the features are meaningless" in result.stdout
    assert "windows full after 12 steps, then 10 measured" in result.stdout
    return read_report(path)


@pytest.fixture
def plan(tmp_path: Path) -> BenchPlan:
    return BenchPlan(load_config(write_config(tmp_path, CAMERA), {}), cameras=2, size=(64, 48), steps=4)


def test_the_tiny_preset_is_measured_on_a_cpu(report: BenchReport) -> None:
    model, workload, engine, path = report.settings.model, report.settings.workload, report.engine, report.path
    assert (model.model, model.device, workload.cameras, workload.size) == ("tiny", "cpu", 1, (160, 120))
    assert (model.weights, model.mixers) == ("random:0", ("attention",) * 4)
    assert (engine.fill_steps, engine.steps, engine.gpu_busy, engine.epochs_begun) == (12, 10, None, 0)
    assert 0 < engine.step_ms.p50 <= engine.step_ms.p95 <= engine.step_ms.p99
    assert engine.steps_per_s == engine.frames_per_s, "one camera"
    # A step ends before the next begins: the rate follows from the mean, which lies between fastest and slowest.
    assert engine.steps_per_s > 0.5 / (engine.step_ms.p99 / 1e3)
    assert engine.state_bytes > 1 << 20
    assert engine.peak_bytes > 64 << 20, "the process has imported torch"
    assert path.captured == 22 == path.published + path.dropped + path.failed
    assert (path.failed, path.lost) == (0, 0)
    assert path.capture_to_receive_ms.p50 >= path.capture_to_publish_ms.p50 > path.outside_model_ms.p50 > 0
    # The camera delivers 30 frames/s; the first record may have been received late, by no more than its latency.
    received_s = (path.records - 1) / path.frames_per_s
    assert received_s + path.capture_to_receive_ms.p99 / 1e3 > (path.records - 1) / 31


def test_an_earlier_run_is_printed_beside_this_one(report: BenchReport, tmp_path: Path) -> None:
    before = replace(report, engine=replace(report.engine, frames_per_s=report.engine.frames_per_s / 2))
    write_report(before, tmp_path / "before.json")
    console = Console(file=io.StringIO(), width=200)
    print_comparison(read_report(tmp_path / "before.json"), report, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    (frames,) = (line for line in text.splitlines() if line.split()[:2] == ["engine", "frames"])
    assert frames.split()[-1] == "2.000"
    assert "DIFFERENT SETTINGS" not in text


def test_different_settings_are_named_in_a_comparison(report: BenchReport) -> None:
    stream = StreamConfig(window=9, retention=RetentionConfig(camera_only=True))
    versions = dict(report.machine.versions) | {"torch": "1.0"}
    settings = replace(
        report.settings,
        model=replace(report.settings.model, dtype="bfloat16"),
        output=replace(report.settings.output, tokens=("camera", "pooled")),
        workload=replace(report.settings.workload, cameras=8, stream=stream, fps=2.0),
    )
    before = replace(
        report,
        settings=settings,
        machine=replace(report.machine, versions=versions),
        path=replace(report.path, fps=1.0),
    )
    console = Console(file=io.StringIO(), width=200)
    print_comparison(before, report, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "DIFFERENT SETTINGS" in text
    for line in (
        "cameras: 8 -> 1",
        "dtype: bfloat16 -> float32",
        "window: 9 -> 8",
        "camera_only: true -> false",
        "tokens: [camera, pooled] -> [camera, patch",
        "fps: 2.0 -> none",
        "torch: 1.0 -> ",
        "frames/s that each camera sends: 1 -> ",
    ):
        assert line in text


def test_other_mixers_are_one_difference(report: BenchReport) -> None:
    settings = report.settings
    hybrid = replace(settings.model.network, mixers=("kda", "attention"))
    before = replace(settings, model=replace(settings.model, network=hybrid, mixers=hybrid.global_mixers))
    assert [line.partition(":")[0] for line in differences(before, settings)] == ["mixers"]


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"settings": 1}', b'{"x":' * 50_000])
def test_a_file_that_is_not_a_report_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BenchError, match=r"before\.json (cannot be read|is not a report)"):
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


def test_a_failed_frame_voids_the_measurement(plan: BenchPlan) -> None:
    class Failing(Engine):
        def step(self, frames: Sequence[Frame], while_device_busy: WhileDeviceBusy | None = None) -> list[Outcome]:
            return [FrameFailure(frame.stamp, "no room") for frame in frames]

    with Failing(plan.config.model) as engine, pytest.raises(BenchError, match="a frame of bench0 failed: no room"):
        measure_engine(engine, plan)


def timing(camera: str, frame: int, receive_s: float, *, model_us: int = 7000, warmup: bool = False) -> RecordTiming:
    return RecordTiming(camera, 0, frame, warmup, round(receive_s * 1e9), 10_000.0, 11_000.0, 1000, 500, model_us, 200)


def received(records: Sequence[RecordTiming]) -> Received:
    return Received(tuple(records), lost=0, captured=9, published=8, dropped=1, failed=0)


def test_only_records_while_all_streams_were_full_are_counted(plan: BenchPlan) -> None:
    early = [timing("bench0", 1, 0.0, warmup=True), timing("bench0", 4, 0.1), timing("bench1", 3, 0.2)]
    both = [timing("bench1", 4, 0.3), timing("bench0", 5, 0.4), timing("bench1", 5, 0.5)]
    result = summarize(received([*early, *both, timing("bench1", 6, 9.0)]), plan, fps=30.0)
    assert result.records == 2, "after bench1 was full, before bench0 ended"
    assert result.frames_per_s == pytest.approx(10.0)
    assert (result.outside_model_ms.p50, result.capture_to_receive_ms.p99, result.queue_ms.p95) == (3.0, 11.0, 1.0)
    assert (result.captured, result.published, result.dropped) == (9, 8, 1)


def test_too_few_records_are_an_error(plan: BenchPlan) -> None:
    with pytest.raises(BenchError, match=r"too few.* 9 frames, 8 were published \(1 dropped.*received 1 records"):
        summarize(received([timing("bench0", 9, 0.0)]), plan, fps=30.0)


def test_the_frame_rate_is_a_live_cameras_or_what_the_model_can_take(plan: BenchPlan) -> None:
    assert plan.rate(0.001) == 30.0
    assert plan.rate(0.1) == pytest.approx(8.0)
    assert replace(plan, fps=5.0).rate(0.1) == 5.0


def test_mistakes_on_the_command_line_have_their_exit_codes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_command(["bench", "--size", "big"]) == ExitCode.USAGE
    assert "1920x1080" in capsys.readouterr().err
    assert run_command(["bench", "--preset", "nope"]) == ExitCode.CONFIG
    assert "lingbot-map" in capsys.readouterr().err
    missing = str(tmp_path / "before.json")
    assert run_command(["bench", "--preset", "tiny", "--compare", missing]) == ExitCode.UNAVAILABLE
    captured = capsys.readouterr()
    assert (f"{missing} cannot be read" in captured.err, captured.out) == (True, ""), "before anything is measured"
