"""Streams survive a restart of the service exactly, or the log says why not; a stop stays quick."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from retinad.client import EndRecord, FeaturesRecord, Record
from retinad.daemon.exit_codes import ExitCode
from retinad.daemon.service.snapshots import StreamSnapshots
from retinad.pipeline.config import CameraConfig, ModelConfig, NetworkConfig, OutputConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.executor import StepOutput
from retinad.pipeline.engine.model_runner import WhileDeviceBusy
from retinad.pipeline.files import state_file
from retinad.pipeline.frames import Frame, FrameStamp
from retinad.pipeline.worker import Worker

from ...deadlines import scaled
from ..in_process import InProcessService, until
from ..records import features_of, is_end, record_of
from ..reference import engine_features
from ..service_rig import ServiceProcess, camera, receive_until, running, subscriber, write_config, write_frames

KEEP = "keep_state = true"


def play_until(config: Path, seq: int, name: str = "a") -> tuple[list[FeaturesRecord], ServiceProcess]:
    """Run the service until a camera's record with this number, then stop it: all its records."""
    with subscriber(config.parent) as records_in, running(config) as service:
        records: list[Record] = receive_until(records_in, record_of(name, at_least=seq))
        code, took_s = service.stop()
        assert (code, took_s < scaled(3.0)) == (0, True)
        records += receive_until(records_in, is_end)
    end = next(record for record in records if isinstance(record, EndRecord))
    assert end.captured_total == end.published_total + end.dropped_total + end.failed_total
    (config.parent / "notify.sock").unlink()
    return features_of(records, name), service


def said(service: ServiceProcess, event: str) -> list[dict[str, object]]:
    return [line for line in service.events() if line["event"] == event]


def test_a_stream_continues_after_a_restart_with_the_numbers_of_one_that_never_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    paths = write_frames(folder, 60)
    config = write_config(tmp_path, camera("a", folder, mode="lossless", fps=15), service=KEEP)
    config.write_text(config.read_text().replace("window = 2", "window = 2\nepoch_frames = 9"))
    before, _ = play_until(config, 5)
    kept = tmp_path / "state" / "streams" / "a.safetensors"
    assert [entry.name for entry in kept.parent.iterdir()] == [kept.name]
    after, second = play_until(config, 8)
    (line,) = said(second, "stream snapshot restored")
    assert (line["epoch"], line["epoch_frame"]) == (before[-1].epoch, before[-1].epoch_frame + 1)

    assert before[0].instance != after[0].instance
    assert [(record.stream_epoch, record.seq) for record in after] == [(0, number) for number in range(len(after))]
    expected = engine_features(config, [*paths[: len(before)], *paths[: len(after)]])
    assert len({record.epoch for record in expected}) > 1
    for record, other in zip([*before, *after], expected, strict=True):
        assert (record.epoch, record.epoch_frame, set(record.flags)) == (
            other.epoch,
            other.epoch_frame,
            {str(flag) for flag in other.flags},
        )
        for tensor in other.tensors:
            np.testing.assert_array_equal(record[tensor.name], tensor.data)


def test_a_snapshot_that_does_not_fit_is_ignored_and_the_log_says_why(tmp_path: Path) -> None:
    source = "synthetic:?fps=30&width=160&height=120"
    (tmp_path / "state" / "streams").mkdir(parents=True)

    def play(cameras: str, model: str) -> tuple[FeaturesRecord, list[str]]:
        """The first record of a run of five, and why its snapshot was not used."""

        async def act(records: list[Record]) -> None:
            await until(lambda: any(map(record_of("a", 4), records)))
            os.kill(os.getpid(), signal.SIGTERM)

        service = InProcessService(tmp_path, config=write_config(tmp_path, cameras, service=KEEP, model=model))
        with capture_logs() as log:
            assert service.run(act) == ExitCode.OK
        reasons = [line["reason"] for line in log if line["event"] == "stream snapshot not used"]
        return features_of(service.records)[0], reasons

    play(camera("a", source), "")
    first, (reason,) = play(camera("a", source), "seed = 4")
    assert (first.epoch, first.epoch_frame) == (0, 0)
    assert "weights was random:0, is random:4" in reason

    for was, now in (("None", "[0, 0, 80, 60]"), ("[0, 0, 80, 60]", "[8, 8, 80, 60]")):
        first, (reason,) = play(camera("a", source) + f"crop = {now}\n", "seed = 4")
        assert (first.epoch, first.epoch_frame) == (0, 0)
        assert f"crop was {was}, is {now}" in reason
    play(camera("a", source), "seed = 4")

    first, reasons = play(camera("a", source.replace("160", "200")), "seed = 4")
    assert (first.epoch, first.epoch_frame) == (1, 0)
    assert {"reset", "size_changed"} <= set(first.flags)
    assert reasons == ["its frames were 160x120, now they are 200x120"]


def test_nothing_is_saved_unless_configured(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("a", "synthetic:?fps=30&width=160&height=120"))
    play_until(config, 3)
    assert not list(tmp_path.glob("state/**/*"))


def test_a_source_that_ended_leaves_no_snapshot(tmp_path: Path) -> None:
    write_frames(tmp_path / "images", 4)
    (tmp_path / "state" / "streams").mkdir(parents=True)
    config = write_config(tmp_path, camera("a", tmp_path / "images", mode="lossless"), service=KEEP)

    async def act(records: list[Record]) -> None:
        return

    service = InProcessService(tmp_path, config=config)
    assert service.run(act) == ExitCode.OK
    assert len(features_of(service.records)) == 4
    assert not list((tmp_path / "state" / "streams").iterdir())


# In the worker


NETWORK = NetworkConfig(channels=32, heads=2, depth=2, patch_embed="conv")
MODEL = ModelConfig(name="test", network=NETWORK, image_width=56, output=OutputConfig(layers=(1,)))
STREAM = StreamConfig(scale_frames=2, window=2, history_frames=2)
CAMERA = CameraConfig("a", "synthetic:", stream=STREAM)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def play(engine: Engine, count: int) -> None:
    engine.open_stream("a", STREAM, ResizeMode.CROP)
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (48, 64, 3), np.uint8)
        engine.step([Frame(FrameStamp("a", 0, number, 0, 0, None, (64, 48)), pixels)])
    engine.flush("a")


@pytest.mark.anyio
async def test_a_slow_disk_does_not_delay_the_stop_and_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "PIECE_BYTES", 2000)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: time.sleep(0.05))
    async with Worker(lambda: Engine(MODEL)) as worker:
        snapshots = StreamSnapshots(tmp_path, worker)
        await worker.run(lambda engine: play(engine, 6))
        began = time.monotonic()
        with capture_logs() as log:
            await snapshots.save(CAMERA, within_s=0.2)
            assert time.monotonic() - began < scaled(0.5)
            await snapshots.save(CAMERA, within_s=-1.0)
    assert [line["event"] for line in log] == ["stream snapshot not saved"] * 2
    assert "no time" in log[0]["reason"]
    assert not names(tmp_path)


@pytest.mark.anyio
async def test_a_snapshot_is_used_once_and_partial_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors.partial").write_bytes(b"half")
    async with Worker(lambda: Engine(MODEL)) as worker:
        snapshots = StreamSnapshots(tmp_path, worker)
        assert not names(tmp_path)
        await worker.run(lambda engine: play(engine, 5))
        await snapshots.save(CAMERA, within_s=5.0)
        await worker.run(lambda engine: engine.close_stream("a"))
        await worker.run(lambda engine: engine.open_stream("a", STREAM, ResizeMode.CROP))
        with capture_logs() as log:
            await snapshots.restore("a")
            await snapshots.restore("a")
        assert [line["event"] for line in log] == ["stream snapshot restored"]
        statistics = await worker.run(lambda engine: engine.statistics())
        assert (statistics.streams[0].frames, statistics.streams[0].keyframes) == (5, 5)
        assert not names(tmp_path)


@pytest.mark.anyio
async def test_a_stream_stopped_within_its_first_block_is_not_saved(tmp_path: Path) -> None:
    """The restored stream would keep a first block that is too short."""
    async with Worker(lambda: Engine(MODEL)) as worker:
        await worker.run(lambda engine: play(engine, 1))
        with capture_logs() as log:
            await StreamSnapshots(tmp_path, worker).save(CAMERA, within_s=5.0)
            await StreamSnapshots(None, worker).save(CAMERA, within_s=5.0)
            await StreamSnapshots(tmp_path, worker).save(replace(CAMERA, name="b"), within_s=5.0)
            await StreamSnapshots(tmp_path, worker).save(replace(CAMERA, name="c"), within_s=5.0)
    assert [line["reason"] for line in log] == ["its first block of frames was incomplete"], "b and c had no frame"
    assert not names(tmp_path)


@pytest.mark.anyio
async def test_a_save_waits_for_a_slow_step_or_says_that_it_could_not(tmp_path: Path) -> None:
    """Known fault: the save was cancelled before its line, and the memory lost in silence."""
    async with Worker(lambda: Engine(MODEL), close_timeout_s=10.0) as worker:
        snapshots = StreamSnapshots(tmp_path, worker)
        await worker.run(lambda engine: play(engine, 6))
        with capture_logs() as log:
            worker.start(lambda engine: time.sleep(0.8))
            await snapshots.save(CAMERA, within_s=0.2)
            await snapshots.save(CAMERA, within_s=scaled(10.0))
            release = threading.Event()
            worker.start(lambda engine: release.wait(20))
            with anyio.move_on_after(0.2):  # the whole service ends, as after a device failure
                await snapshots.save(CAMERA, within_s=10.0)
            release.set()
    assert [line["event"] for line in log] == [
        "stream snapshot not saved",
        "stream snapshot saved",
        "stream snapshot not saved",
    ]
    assert "no time left: the model's step or other cameras took all of 0.2 s" in log[0]["reason"]
    assert log[2]["reason"] == "the service ended before it was saved"


@pytest.mark.anyio
async def test_a_device_that_fails_while_it_is_saved_costs_that_memory_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("out of pinned memory")

    async with Worker(lambda: Engine(MODEL)) as worker:
        await worker.run(lambda engine: play(engine, 6))
        monkeypatch.setattr("retinad.pipeline.engine.engine.save_stream", fail)
        with capture_logs() as log:
            await StreamSnapshots(tmp_path, worker).save(CAMERA, within_s=5.0)
    assert [line["reason"] for line in log] == ["its memory cannot be copied: out of pinned memory"]


@pytest.mark.anyio
async def test_a_memory_that_is_too_old_is_not_used_and_its_age_counts_from_its_last_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time_ns
    async with Worker(lambda: Engine(MODEL)) as worker:

        async def reopen(max_age_s: float) -> str:
            await worker.run(lambda engine: engine.close_stream("a"))
            await worker.run(lambda engine: engine.open_stream("a", STREAM, ResizeMode.CROP))
            with capture_logs() as log:
                await StreamSnapshots(tmp_path, worker, max_age_s).restore("a")
            (line,) = log
            return str(line.get("reason", line["event"]))

        await worker.run(lambda engine: play(engine, 6))
        await StreamSnapshots(tmp_path, worker).save(CAMERA, within_s=5.0)
        monkeypatch.setattr(time, "time_ns", lambda: real() + 100 * 10**9)
        assert await reopen(150.0) == "stream snapshot restored"
        await StreamSnapshots(tmp_path, worker).save(CAMERA, within_s=5.0)  # no frame came: it is as old as before
        monkeypatch.setattr(time, "time_ns", lambda: real() + 200 * 10**9)
        assert re.search(r"is 20\d s old, expected at most 150 s", await reopen(150.0))
        assert await reopen(250.0) == "stream snapshot restored"


def test_slow_steps_lose_no_memory_at_a_stop_and_systemd_is_asked_for_time(tmp_path: Path) -> None:
    class Slow(Engine):
        def step_outputs(
            self, frames: Sequence[Frame], while_device_busy: WhileDeviceBusy | None = None
        ) -> Iterator[StepOutput]:
            time.sleep(0.7 * len(frames))
            yield from super().step_outputs(frames, while_device_busy)

    cameras = "".join(camera(name, "synthetic:?fps=30&width=160&height=120") for name in "abcd")
    cameras += camera("never", tmp_path / "nothing.mp4")
    config = write_config(tmp_path, cameras, service=KEEP)
    (tmp_path / "state" / "streams").mkdir(parents=True)

    async def act(records: list[Record]) -> None:
        await until(lambda: all(any(map(record_of(name, 1), records)) for name in "abcd"), within_s=40.0)
        await anyio.sleep(0.2)  # a step of 2.8 s is running
        os.kill(os.getpid(), signal.SIGTERM)

    service = InProcessService(tmp_path, Slow, config=config)
    with capture_logs() as log:
        assert service.run(act) == ExitCode.OK
    lines = [(line["event"], line["camera"]) for line in log if "snapshot" in line["event"]]
    assert sorted(lines) == [("stream snapshot saved", name) for name in "abcd"]
    stopping = [text for _, text in service.notifications].index("STOPPING=1")
    assert "EXTEND_TIMEOUT_USEC=35000000" in [text for _, text in service.notifications[stopping:]]
