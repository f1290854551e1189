"""An extraction yields the service's numbers, each frame once, and the same numbers if it is stopped and resumed."""

import errno
import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import cv2
import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from retinad.daemon.cli.app import run_command
from retinad.daemon.config.job import load_job_config
from retinad.daemon.exit_codes import ExitCode, JobError
from retinad.daemon.extract import output as extract_output
from retinad.daemon.extract import steps, write_behind
from retinad.daemon.extract.index import FrameEntry, Index, Unreadable, read_index
from retinad.daemon.extract.job import extract
from retinad.daemon.extract.progress import Reporter, progress_line
from retinad.daemon.extract.request import Extraction
from retinad.pipeline.config import ModelConfig
from retinad.pipeline.engine import open as engine_open
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.prefetch import Prefetcher
from retinad.pipeline.errors import DeviceError
from retinad.pipeline.frames import Features, Frame, FrameStamp, Outcome, OutputKind
from retinad.pipeline.model.checkpoint import load_model

from ...deadlines import scaled
from ...pipeline.capture.servers import FakeServer, draw_number, files, mjpeg
from ..records import features_of, is_end
from ..service_rig import camera, receive_until, running, subscriber, write_config, write_frames

Add = Callable[[extract_output.OutputFolder, Sequence[Outcome]], None]
SCENE = "synthetic:?width=64&height=48&frames=40"


@pytest.fixture(autouse=True)
def _same_threads_after() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _no_limit_on_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SAVE_SHARE", 0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The features of the scene from an uninterrupted job."""
    folder = tmp_path_factory.mktemp("whole")
    play(wanted(folder, save_every_s=60.0))
    return folder / "out"


def wanted(folder: Path, source: object = SCENE, out: str = "out", **changes: object) -> Extraction:
    """A job with the rig's tiny model, epochs of nine frames, and shards of five."""
    settings = load_job_config(write_config(folder, ""), (), {})
    stream = replace(settings.stream, epoch_frames=9)
    made = Extraction(str(source), folder / out, settings.model, stream, shard_frames=5, save_every_s=0)
    return replace(made, **changes)  # type: ignore[arg-type]  # a test's own keys


def play(extraction: Extraction) -> tuple[ExitCode, str]:
    """Run a job to its end: the exit code, and what it printed."""
    said = io.StringIO()
    code = anyio.run(extract, extraction, Reporter(Console(file=said), None), "0")
    return code, said.getvalue()


def index_of(folder: Path) -> Index:
    index = read_index(folder)
    assert index is not None
    return index


def frames_of(index: Index) -> list[FrameEntry]:
    return [frame for shard in index.shards for frame in shard.frames]


def tensors_of(folder: Path) -> list[dict[str, torch.Tensor]]:
    """Each frame's tensors, in order, as the index says."""
    rows = []
    for shard in index_of(folder).shards:
        tensors = load_file(folder / shard.file)
        assert {entry.name: [len(shard.frames), *entry.shape] for entry in shard.tensors} == {
            name: list(value.shape) for name, value in tensors.items()
        }
        rows += [{name: value[row] for name, value in tensors.items()} for row in range(len(shard.frames))]
    return rows


def assert_same(folder: Path, other: Path) -> None:
    """Assert that all numbers are equal bit for bit, and that all frames have the same flags and place in the epoch."""
    assert frames_of(index_of(folder)) == frames_of(index_of(other))
    for one, two in zip(tensors_of(folder), tensors_of(other), strict=True):
        assert one.keys() == two.keys()
        # As bytes: random weights give no usable field of view, so some numbers are NaN.
        assert all(torch.equal(one[name].view(torch.uint8), two[name].view(torch.uint8)) for name in one)


# Same numbers as the service


@pytest.mark.parametrize("name", ["a.avi", "a.mkv", "list.m3u8", "0.png"])
def test_a_recording_on_a_web_server_has_the_features_of_the_file(tmp_path: Path, name: str) -> None:
    for number in range(10):
        cv2.imwrite(str(tmp_path / f"{number}.png"), draw_number(number))
    for path, codec in (("a.avi", "MJPG"), ("a.mkv", "FFV1"), ("a.ts", "MPG2")):
        code = cv2.VideoWriter.fourcc(*codec)
        writer = cv2.VideoWriter(str(tmp_path / path), cv2.CAP_FFMPEG, code, 25.0, (320, 240))
        for number in range(10):
            writer.write(draw_number(number))
        writer.release()
    (tmp_path / "list.m3u8").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.4,\na.ts\n#EXT-X-ENDLIST\n")
    server = FakeServer(files(tmp_path))
    try:
        url = f"http://u:s3cret@127.0.0.1:{server.port}/{name}"
        code_there, said = play(wanted(tmp_path, url, out="there"))
    finally:
        server.stop()
    assert code_there is ExitCode.OK, said
    assert "s3cret" not in said + (tmp_path / "there" / "index.json").read_text()
    play(wanted(tmp_path, tmp_path / ("a.ts" if name == "list.m3u8" else name), out="here"))
    for one, two in zip(tensors_of(tmp_path / "there"), tensors_of(tmp_path / "here"), strict=True):
        assert all(torch.equal(one[key], two[key]) for key in two)


def test_a_camera_on_a_web_server_is_no_recording(tmp_path: Path) -> None:
    server = FakeServer(mjpeg(50))
    try:
        with pytest.raises(JobError, match="has no end"):
            play(wanted(tmp_path, f"http://127.0.0.1:{server.port}/x"))
    finally:
        server.stop()


def test_a_fifo_is_refused_without_a_look_at_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(JobError, match="is a FIFO"):
        play(wanted(tmp_path, tmp_path / "fifo"))


def test_the_help_names_web_servers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["extract", "--help"]) == 0
    assert "web server" in " ".join(capsys.readouterr().out.replace("\u2502", " ").split())


def test_images_have_the_features_that_the_service_publishes(tmp_path: Path) -> None:
    write_frames(tmp_path / "images", 24)
    config = write_config(tmp_path, camera("walk", tmp_path / "images", mode="lossless"))
    with subscriber(tmp_path) as records_in, running(config) as service:
        try:
            published = features_of(receive_until(records_in, is_end))
        except TimeoutError:
            pytest.fail(service.log.read_text())
        assert service.wait() == 0
    assert run_command(["extract", str(tmp_path / "images"), "-o", str(tmp_path / "out"), "-c", str(config)]) == 0
    index = index_of(tmp_path / "out")
    assert (index.complete, index.frames, index.unreadable, index.failures) == (True, 24, 0, ())
    assert index.settings.model.weights == "random:0"
    for record, frame, tensors in zip(published, frames_of(index), tensors_of(tmp_path / "out"), strict=True):
        expected = (record.source_seq, record.pts_ns, record.epoch, record.epoch_frame, record.keyframe, record.flags)
        found = (frame.source_seq, frame.pts_ns, frame.epoch, frame.epoch_frame, frame.keyframe, frame.flags)
        assert found == expected
        assert list(tensors) == sorted(record.tensors)
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(tensor.numpy(), record[name])
    (shard,) = index.shards
    first = published[0]
    assert (shard.source_size, shard.model_size, shard.grid) == (first.source_size, first.model_size, first.grid)
    assert shard.to_source == first.to_source


def test_undecodable_images_are_skipped_named_and_counted(tmp_path: Path) -> None:
    paths = write_frames(tmp_path / "images", 7)
    for number in (3, 6):
        paths[number].write_bytes(b"not an image")
    code, said = play(wanted(tmp_path, tmp_path / "images"))
    index = index_of(tmp_path / "out")
    assert (code, index.frames, index.unreadable) == (ExitCode.OK, 5, 2)
    assert index.unreadable_frames == (Unreadable(3, "frame3.png"), Unreadable(6, "frame6.png"))
    assert [(frame.source_seq, frame.file) for frame in frames_of(index)] == [
        (number, f"frame{number}.png") for number in (0, 1, 2, 4, 5)
    ]
    assert "frame3.png" in said
    assert "5 frames; 2 unreadable, 0 failed" in said


def test_an_index_lists_unreadable_images_wherever_its_job_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are listed even if the stopped job was of an earlier version, which did not write the names."""
    for number, path in enumerate(write_frames(tmp_path / "images", 12)):
        if number in (1, 9):
            path.write_bytes(b"not an image")
    with monkeypatch.context() as patch:
        patch.setattr(extract_output.OutputFolder, "add", _breaking(extract_output.OutputFolder.add, 8))
        with pytest.raises(Killed):
            play(wanted(tmp_path, tmp_path / "images"))
    stopped = index_of(tmp_path / "out")
    assert stopped.resume is not None
    assert stopped.unreadable == stopped.resume.source_seq - stopped.frames == 1
    assert stopped.unreadable_frames == (Unreadable(1, "frame1.png"),)
    content = json.loads((tmp_path / "out" / "index.json").read_text())
    del content["unreadable_frames"]
    for shard in content["shards"]:
        for frame in shard["frames"]:
            del frame["file"]
    (tmp_path / "out" / "index.json").write_text(json.dumps(content | {"unreadable": 0}))
    assert play(wanted(tmp_path, tmp_path / "images"))[0] == ExitCode.OK
    index = index_of(tmp_path / "out")
    assert (index.frames, index.unreadable) == (10, 2)
    assert index.unreadable_frames == (Unreadable(1, "frame1.png"), Unreadable(9, "frame9.png"))
    assert [frame.file for frame in frames_of(index)][-2:] == ["frame10.png", "frame11.png"]


def test_a_shard_holds_images_of_one_size(tmp_path: Path) -> None:
    write_frames(tmp_path / "images", 3)
    for path in write_frames(tmp_path / "high", 3, 120, 160):
        path.rename(tmp_path / "images" / f"later{path.name}")
    play(wanted(tmp_path, tmp_path / "images", save_every_s=60.0))
    index = index_of(tmp_path / "out")
    assert [(shard.source_size, len(shard.frames)) for shard in index.shards] == [((160, 120), 3), ((120, 160), 3)]
    assert "size_changed" in frames_of(index)[3].flags
    assert len(tensors_of(tmp_path / "out")) == 6


def test_npz_holds_the_same_numbers_and_the_bits_of_bfloat16(tmp_path: Path) -> None:
    job_of = wanted(tmp_path, save_every_s=60.0)
    model = replace(job_of.model, output=replace(job_of.model.output, dtype="bfloat16"))
    play(replace(job_of, model=model))
    play(replace(job_of, model=model, out=tmp_path / "npz", form="npz"))
    for shard, other in zip(index_of(tmp_path / "out").shards, index_of(tmp_path / "npz").shards, strict=True):
        assert shard.tensors == other.tensors
        assert shard.tensors[0].dtype == "bfloat16"
        with np.load(tmp_path / "npz" / other.file) as arrays:
            for name, tensor in load_file(tmp_path / "out" / shard.file).items():
                np.testing.assert_array_equal(arrays[name], tensor.view(torch.uint16).numpy())


# Poses and depths


def with_geometry(job: Extraction, **output: object) -> Extraction:
    """The job with the heads of poses and depths."""
    network = replace(job.model.network, depth=4)
    outputs = (OutputKind.FEATURES, OutputKind.POSE, OutputKind.DEPTH)
    form = replace(job.model.output, **output)  # type: ignore[arg-type]  # a test's own keys
    return replace(job, model=replace(job.model, network=network, outputs=outputs, output=form))


def test_poses_and_depths_are_those_that_the_engine_publishes(tmp_path: Path) -> None:
    """Across epochs: each has an alignment of its own, which the index gives for each shard."""
    job = with_geometry(
        wanted(tmp_path, write_frames(tmp_path / "images", 20)[0].parent, save_every_s=60.0), map_stride=3
    )
    assert play(job)[0] is ExitCode.OK
    outcomes: list[Outcome] = []
    with Engine(job.model) as engine:
        engine.open_stream("direct", job.stream, job.resize)
        for number in range(20):
            pixels = cv2.imread(str(tmp_path / "images" / f"frame{number}.png"))
            assert pixels is not None
            stamp = FrameStamp("direct", 0, number, 0, 0, None, (160, 120))
            outcomes += engine.step([Frame(stamp, pixels.astype(np.uint8, copy=False))])
        outcomes += engine.flush("direct")
    shards = index_of(job.out).shards
    geometries = [shard.geometry for shard in shards for _ in shard.frames]
    assert len(set(geometries)) > 2
    for features, tensors, geometry in zip(outcomes, tensors_of(job.out), geometries, strict=True):
        assert isinstance(features, Features)
        assert {"pose/world_from_camera", "depth", "depth_confidence", "layer1/patch"} <= tensors.keys()
        assert geometry == features.geometry
        assert geometry is not None
        assert geometry.map_stride == 3
        for tensor in features.tensors:
            np.testing.assert_array_equal(tensors[tensor.name].numpy(), tensor.data)


def test_depths_of_some_frames_need_few_shards(tmp_path: Path) -> None:
    """Frames with and without a depth alternate: they do not begin a new shard each time."""
    job = with_geometry(wanted(tmp_path, SCENE, shard_frames=None, save_every_s=60.0), map_every=3)
    play(replace(job, stream=replace(job.stream, epoch_frames=0)))
    shards = index_of(job.out).shards
    by_number = {frame.frame: shard for shard in shards for frame in shard.frames}
    assert sorted(by_number) == list(range(40))
    assert len(shards) == 2
    has_depth = [any(tensor.name == "depth" for tensor in by_number[number].tensors) for number in range(40)]
    assert has_depth == [number % 3 == 0 for number in range(40)]
    assert len(tensors_of(job.out)) == 40


def test_a_folder_with_other_outputs_is_refused_naming_the_config_key(whole: Path) -> None:
    job = wanted(whole.parent)
    pooled = replace(job.model, outputs=(OutputKind.FEATURES, OutputKind.DEPTH))
    with pytest.raises(
        JobError, match=r"settings: model\.outputs was \[features\], is \[features, depth\]\. Choose another"
    ):
        play(replace(job, model=replace(pooled, network=job.model.network)))


def test_an_index_of_an_earlier_version_holds_features_only(tmp_path: Path, whole: Path) -> None:
    """It named no outputs; the same job still finds it complete."""
    shutil.copytree(whole, tmp_path / "out")
    content = json.loads((tmp_path / "out" / "index.json").read_text())
    del content["settings"]["outputs"]
    (tmp_path / "out" / "index.json").write_text(json.dumps(content))
    assert "is complete" in play(wanted(tmp_path))[1]


def test_poses_of_a_job_that_was_stopped_continue_in_the_same_frame_of_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(with_geometry(wanted(tmp_path, out="whole", save_every_s=60.0)))
    job = with_geometry(wanted(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(extract_output.OutputFolder, "add", _breaking(extract_output.OutputFolder.add, 25))
        with pytest.raises(Killed):
            play(job)
    with pytest.raises(JobError, match=r"model\.outputs was"):
        play(replace(job, model=replace(job.model, outputs=(OutputKind.FEATURES,))))
    assert play(job)[0] is ExitCode.OK
    assert_same(job.out, tmp_path / "whole")
    one, two = (
        {frame.frame: shard.geometry for shard in index_of(folder).shards for frame in shard.frames}
        for folder in (job.out, tmp_path / "whole")
    )
    assert one == two


# Resuming


class Killed(Exception):
    """Simulates the end of the process."""


def _breaking(add: Add, after: int) -> Add:
    left = iter(range(after))

    def add_some(self: extract_output.OutputFolder, outcomes: Sequence[Outcome]) -> None:
        if next(left, None) is None:
            raise Killed
        add(self, outcomes)

    return add_some


@pytest.mark.parametrize("after", [1, 9, 23])
def test_a_job_that_breaks_off_after_any_step_resumes_to_the_same_numbers(
    tmp_path: Path, after: int, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks off in the first block, at the end of an epoch, and much later. The state is saved after every step."""
    with monkeypatch.context() as patch:
        patch.setattr(extract_output.OutputFolder, "add", _breaking(extract_output.OutputFolder.add, after))
        with pytest.raises(Killed):
            play(wanted(tmp_path))
    before = index_of(tmp_path / "out")
    assert not before.complete
    assert before.frames <= after
    assert play(wanted(tmp_path))[0] == ExitCode.OK
    assert_same(tmp_path / "out", whole)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        ["index.json", *(shard.file for shard in index_of(tmp_path / "out").shards)]
    )


def test_a_job_with_several_frames_a_step_resumes_to_the_same_numbers_as_one_by_one(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = wanted(tmp_path, SCENE.replace("=40", "=22"))
    settings = replace(settings, run_frames=3, stream=replace(settings.stream, window=4, history_frames=2))
    play(replace(settings, out=tmp_path / "runs"))
    play(replace(settings, out=tmp_path / "single", run_frames=1))
    with monkeypatch.context() as patch:
        patch.setattr(extract_output.OutputFolder, "add", _breaking(extract_output.OutputFolder.add, 5))
        with pytest.raises(Killed):
            play(settings)
    assert 0 < index_of(tmp_path / "out").frames < 22
    play(replace(settings, run_frames=None))  # as many as in the first run
    assert_same(tmp_path / "out", tmp_path / "runs")
    assert frames_of(index_of(tmp_path / "runs")) == frames_of(index_of(tmp_path / "single"))
    for one, other in zip(tensors_of(tmp_path / "runs"), tensors_of(tmp_path / "single"), strict=True):
        for name in one:
            # Half a unit in the last place of float16 at the largest numbers, about 4: sums round differently.
            torch.testing.assert_close(one[name], other[name], rtol=0, atol=2e-3)


def test_a_signal_or_a_kill_costs_no_frame(tmp_path: Path) -> None:
    scene = SCENE.replace("=40", "=120")
    config = write_config(tmp_path, "")
    command = [sys.executable, "-m", "retinad.daemon", "extract", scene, "-o", str(tmp_path / "out")]
    command += ["-c", str(config), "--shard-frames", "4", "--save-every", "0"]
    codes, said = [], []
    for number in (signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        done = _frames(tmp_path / "out")
        while _frames(tmp_path / "out") <= done:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        said.append(process.communicate(timeout=scaled(50))[1])
        codes.append(process.returncode)
    assert codes == [ExitCode.INCOMPLETE, -signal.SIGKILL], said
    assert "run the same command to continue" in said[0]
    assert "resuming at frame" in said[1]
    settings = wanted(tmp_path, scene, save_every_s=60.0, shard_frames=None)
    endless = replace(settings, stream=replace(settings.stream, epoch_frames=0))
    assert "resuming at frame" in play(endless)[1]
    play(replace(endless, out=tmp_path / "whole"))
    assert_same(tmp_path / "out", tmp_path / "whole")


def _frames(folder: Path) -> int:
    index = read_index(folder)
    return 0 if index is None else index.frames


def test_the_state_of_delta_blocks_is_restored_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = wanted(tmp_path, SCENE.replace("=40", "=6"))
    network = replace(settings.model.network, mixers=("kda", "attention"))
    settings = replace(settings, model=replace(settings.model, network=network))
    play(replace(settings, out=tmp_path / "whole"))
    with monkeypatch.context() as patch:
        patch.setattr(extract_output.OutputFolder, "add", _breaking(extract_output.OutputFolder.add, 4))
        with pytest.raises(Killed):
            play(settings)
    assert "resuming at frame" in play(settings)[1]
    assert_same(tmp_path / "out", tmp_path / "whole")


def test_the_model_runs_on_while_a_shard_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, write = steps.run_step, write_behind.write
    later, numbers = threading.Event(), iter(range(100))
    met: list[bool] = []

    def counted(prefetcher: Prefetcher, frames: list[Frame], engine: Engine) -> list[Outcome]:
        if next(numbers) == 2:
            later.set()
        return step(prefetcher, frames, engine)

    def slow(output: extract_output.OutputFolder, results: write_behind.Results) -> None:
        met.append(later.wait(scaled(10)))
        write(output, results)

    monkeypatch.setattr(steps, "run_step", counted)
    monkeypatch.setattr(write_behind, "write", slow)
    play(wanted(tmp_path, SCENE.replace("=40", "=8"), save_every_s=60.0))
    assert met[0], "the third step does not wait until the first one's features are written"


def test_a_path_is_the_same_recording_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_frames(tmp_path / "images", 3)
    play(wanted(tmp_path, tmp_path / "images"))
    monkeypatch.chdir(tmp_path / "images")
    (tmp_path / "link").symlink_to("images")
    monkeypatch.setenv("HOME", str(tmp_path))
    for spelling in ("../images", "../images/../link/", f"file://{tmp_path}/images", "~/images"):
        assert "is complete" in play(wanted(tmp_path, spelling))[1]


def test_where_a_link_leads_elsewhere_it_is_another_recording(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_frames(tmp_path / name, 3)
    link = tmp_path / "latest"
    link.symlink_to("one")
    play(wanted(tmp_path, link))
    link.unlink()
    link.symlink_to("two")
    with pytest.raises(JobError, match=r"source was .*/one, is .*/two"):
        play(wanted(tmp_path, link))


def test_a_job_stopped_while_loading_reports_that_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(model: ModelConfig) -> Engine:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)  # until the event loop has handled it
        return load(model)

    load = engine_open.open_engine
    monkeypatch.setattr(engine_open, "open_engine", stopped)
    code, said = play(wanted(tmp_path))
    assert (code, "no features were written" in said) == (ExitCode.INCOMPLETE, True)
    assert not (tmp_path / "out").exists()


def test_a_complete_folder_is_left_alone_without_loading_a_model(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_open, "open_engine", None)
    before = {path: path.stat().st_mtime_ns for path in whole.iterdir()}
    code, said = play(wanted(whole.parent))
    assert (code, said) == (ExitCode.OK, f"{whole} is complete: 40 frames\n")
    assert {path: path.stat().st_mtime_ns for path in whole.iterdir()} == before


# Errors


def test_a_full_disk_ends_the_job_with_the_reason_and_it_can_resume(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, left = os.fsync, iter(range(30))

    def full(descriptor: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(JobError, match="No space left on device") as caught:
            play(wanted(tmp_path))
    assert caught.value.code == ExitCode.IO_ERROR
    assert not list((tmp_path / "out").glob("*.partial"))
    assert play(wanted(tmp_path))[0] == ExitCode.OK
    assert_same(tmp_path / "out", whole)


def test_two_jobs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    descriptor = os.open(tmp_path / "out", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(JobError, match="another job is writing") as caught:
            play(wanted(tmp_path))
    finally:
        os.close(descriptor)
    assert caught.value.code == ExitCode.UNAVAILABLE
    assert not list((tmp_path / "out").iterdir())


def test_a_recording_that_has_become_shorter_is_not_taken_for_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_frames(tmp_path / "images", 8)
    with monkeypatch.context() as patch:
        patch.setattr(extract_output.OutputFolder, "add", _breaking(extract_output.OutputFolder.add, 6))
        with pytest.raises(Killed):
            play(wanted(tmp_path, tmp_path / "images"))
    for path in paths[2:]:
        path.unlink()
    with pytest.raises(JobError, match="has fewer now"):
        play(wanted(tmp_path, tmp_path / "images"))


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"x":' * 50_000])
def test_an_index_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "index.json").write_bytes(content)
    with pytest.raises(JobError, match=r"index\.json cannot be read") as caught:
        extract_output.find_index(tmp_path)
    assert caught.value.code is ExitCode.CANNOT_CREATE


@pytest.mark.parametrize("damage", ["missing", "short", "elsewhere"])
def test_a_folder_with_a_missing_or_damaged_shard_is_not_complete(tmp_path: Path, whole: Path, damage: str) -> None:
    out, shard = tmp_path / "out", index_of(whole).shards[1].file
    shutil.copytree(whole, out)
    if damage == "short":
        os.truncate(out / shard, (out / shard).stat().st_size // 2)
    else:
        (out / shard).rename(tmp_path / shard)
    if damage == "elsewhere":
        (out / "index.json").write_text((out / "index.json").read_text().replace(shard, f"../{shard}"))
    with pytest.raises(JobError, match=shard) as caught:
        play(wanted(tmp_path, save_every_s=60.0))
    assert caught.value.code is ExitCode.CANNOT_CREATE


def test_a_folder_with_other_layers_is_refused_naming_the_config_key(whole: Path) -> None:
    other = wanted(whole.parent)
    with pytest.raises(JobError, match=r"settings: model\.layers was \[1\], is \[0\]\. Choose another"):
        play(replace(other, model=replace(other.model, output=replace(other.model.output, layers=(0,)))))


def test_a_folder_with_other_settings_is_refused_naming_the_difference(whole: Path) -> None:
    other = wanted(whole.parent)
    with pytest.raises(JobError, match=r"stream\.window was 2, is 3") as caught:
        play(replace(other, stream=replace(other.stream, window=3)))
    assert caught.value.code == ExitCode.CANNOT_CREATE


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["{folder}/nope.mp4", "-o", "{folder}/out"], ExitCode.NO_INPUT, "missing: "),
        (["{folder}/empty", "-o", "{folder}/out"], ExitCode.NO_INPUT, "has no images"),
        (["synthetic:", "-o", "{folder}/out"], ExitCode.USAGE, "has no end"),
        (
            ["rtsp://a:secret@127.0.0.1:1/x", "-o", "{folder}/out"],
            ExitCode.USAGE,
            "rtsp://***@127.0.0.1:1/x has no end",
        ),
        (["/dev/video63", "-o", "{folder}/out"], ExitCode.USAGE, "has no end"),
        (["rtps://127.0.0.1", "-o", "{folder}/out"], ExitCode.NO_INPUT, "scheme rtps:// is not known"),
        ([SCENE, "-o", "{folder}/full"], ExitCode.CANNOT_CREATE, "has no index.json"),
        ([SCENE, "-o", "{folder}/full/file"], ExitCode.CANNOT_CREATE, "Not a directory"),
        ([SCENE, "-o", "{folder}/out", "-c", "{folder}/nope.toml"], ExitCode.CONFIG, "cannot read the config"),
        ([SCENE, "-o", "{folder}/out", "--layers", "9"], ExitCode.CONFIG, "command line: --layers: expected 0 to 3"),
        ([SCENE, "-o", "{folder}/out", "--tokens", "nope"], ExitCode.CONFIG, "command line: --tokens"),
        ([SCENE, "-o", "{folder}/out", "--layers", "x"], ExitCode.USAGE, "--layers"),
        ([SCENE, "-o", "{folder}/out", "--run-frames", "0"], ExitCode.USAGE, "--run-frames"),
        ([SCENE, "-o", "{folder}/out", "--format", "zip"], ExitCode.USAGE, "--format"),
        ([SCENE, "-o", "{folder}/out", "--device", "cuda:77"], ExitCode.UNAVAILABLE, "cuda:77"),
        ([SCENE], ExitCode.USAGE, "--output"),
    ],
)
def test_each_mistake_has_its_exit_code_and_reason(
    tmp_path: Path, arguments: list[str], code: ExitCode, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("somebody's")
    (tmp_path / "empty").mkdir()
    given = [argument.format(folder=tmp_path) for argument in arguments]
    assert run_command(["extract", *given]) == code
    assert reason in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_a_device_failure_keeps_what_the_checkpoint_has(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(range(20))

    def step(prefetcher: Prefetcher, frames: list[Frame], engine: Engine) -> list[Outcome]:
        if next(numbers, None) is None:
            raise DeviceError("it is gone")
        return real(prefetcher, frames, engine)

    real = steps.run_step
    monkeypatch.setattr(steps, "run_step", step)
    with pytest.raises(DeviceError):
        play(wanted(tmp_path))
    monkeypatch.setattr(steps, "run_step", real)
    assert index_of(tmp_path / "out").frames >= 10
    play(wanted(tmp_path))
    assert_same(tmp_path / "out", whole)


# Messages


def test_weights_that_mean_nothing_are_named_before_and_after_the_work(tmp_path: Path) -> None:
    """Hours of work are in between."""
    job = wanted(tmp_path, "synthetic:?width=64&height=48&frames=4")
    _, said = play(job)
    assert said.count("the weights are random") == 2
    model, _ = load_model(job.model)
    save_file(model.state_dict(), tmp_path / "w.safetensors", metadata={"retinad": "NOT trained since"})
    _, said = play(
        replace(job, out=tmp_path / "noted", model=replace(job.model, checkpoint=tmp_path / "w.safetensors"))
    )
    assert said.count("note in the checkpoint: NOT trained since") == 2


def test_a_progress_line_has_frames_rate_and_remaining_time() -> None:
    assert progress_line(30, 120, 2.0) == "30 of 120 frames, 2.0 frames/s, 0 min 45 s left"
    assert progress_line(30, None, 2.0) == "30 frames, 2.0 frames/s"
    assert progress_line(0, 120, 0.0) == "0 of 120 frames, 0.0 frames/s"


def test_suppressed_lines_of_the_decoder_are_counted_at_the_end() -> None:
    said = io.StringIO()
    reporter = Reporter(Console(file=said), None)
    for number in range(25):
        reporter.decoder_line(f"left out: {number}.png")
    reporter.end()
    reporter.end()
    assert said.getvalue().splitlines()[19:] == ["left out: 19.png", "5 more lines like these were suppressed"]


def test_the_index_is_plain_json_with_a_file_and_a_row_for_each_frame(whole: Path) -> None:
    index = json.loads((whole / "index.json").read_text())
    assert index["settings"]["output"]["layers"] == [1]
    assert [len(shard["frames"]) for shard in index["shards"]] == [5] * 8
    assert [frame["frame"] for shard in index["shards"] for frame in shard["frames"]] == list(range(40))
