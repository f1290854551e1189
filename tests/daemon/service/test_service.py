"""The service as a whole, as a process: real sources, real sockets, real signals, and a real NOTIFY_SOCKET."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from retinad.client import EndRecord, FeaturesRecord, HelloRecord, Kind, Record, StatusRecord
from retinad.daemon.config.load import load_config
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Features, Frame, FrameStamp

from ..service_rig import (
    ServiceProcess,
    camera,
    processes_of,
    receive_until,
    running,
    subscriber,
    write_config,
    write_frames,
)

FRAMES = Path(__file__).parents[4] / "shared" / "frames"


def is_end(record: Record) -> bool:
    return isinstance(record, EndRecord)


def record_of(name: str, at_least: int = 0) -> Callable[[Record], bool]:
    """Whether a record is a features record of this camera, and not an early one."""
    return lambda record: isinstance(record, FeaturesRecord) and record.camera == name and record.seq >= at_least


def features_of(records: list[Record], name: str | None = None) -> list[FeaturesRecord]:
    return [record for record in records if isinstance(record, FeaturesRecord) and name in (None, record.camera)]


def log_of(service: ServiceProcess) -> list[dict[str, object]]:
    return [json.loads(line) for line in service.log.read_text().splitlines()]


def directly(config: Path, paths: list[Path]) -> list[Features]:
    """The features of pictures by the engine alone, without the service around it."""
    loaded = load_config(config, {})
    features: list[Features] = []
    with Engine(loaded.model) as engine:
        engine.open_stream("direct", loaded.cameras[0].stream, loaded.cameras[0].resize)
        for number, path in enumerate(paths):
            pixels = cv2.imread(str(path))
            stamp = FrameStamp("direct", 0, number, 0, 0, None, (pixels.shape[1], pixels.shape[0]))
            features += engine.step([Frame(stamp, pixels)])
        features += engine.flush("direct")
    return features


@pytest.mark.parametrize("real", [False, True], ids=["drawn", "photographs"])
def test_a_lossless_folder_gives_every_frame_once_and_one_end_and_the_models_own_numbers(
    tmp_path: Path, real: bool
) -> None:
    if real and not FRAMES.is_dir():
        pytest.skip("the photographs are not beside this checkout")
    folder = tmp_path / "pictures"
    paths = write_frames(folder, 24) if not real else sorted(FRAMES.glob("*.jpg"))
    if real:
        shutil.copytree(FRAMES, folder, ignore=shutil.ignore_patterns("*.md"))
    config = write_config(tmp_path, camera("walk", folder, mode="lossless"), service="exit_when_done = true")
    with subscriber(tmp_path) as records_in, running(config) as service:
        records = receive_until(records_in, is_end)
        assert service.process.wait(10) == 0

    published = features_of(records)
    assert [record.seq for record in published] == list(range(24))
    assert [record.source_seq for record in published] == list(range(24))
    assert not any(record.gaps for record in published)
    end = records[-1]
    assert isinstance(end, EndRecord)
    assert (end.captured_total, end.published_total, end.dropped_total, end.failed_total) == (24, 24, 0, 0)
    assert (end.reason, end.next_seq, end.expected_total, end.gaps) == ("finished", 24, 24, ())
    for record, expected in zip(published, directly(config, paths), strict=True):
        assert list(record.tensors) == [tensor.name for tensor in expected.tensors]
        for tensor in expected.tensors:
            np.testing.assert_array_equal(record[tensor.name], tensor.data)


def test_one_camera_too_many_fails_with_the_reason_and_the_others_go_on(tmp_path: Path) -> None:
    """Until there is room for it: a reload without the other camera lets it in."""
    first, second = (camera(name, "synthetic:?fps=40&width=160&height=120") for name in ("first", "second"))
    config = write_config(tmp_path, first + second, model="max_streams = 1")
    with subscriber(tmp_path) as records_in, running(config) as service:
        records = receive_until(records_in, is_end)
        records += receive_until(records_in, record_of("first", 5))
        write_config(tmp_path, second, model="max_streams = 1")
        service.process.send_signal(signal.SIGHUP)
        receive_until(records_in, record_of("second"))
        assert service.stop()[0] == 0
    (end,) = (record for record in records if isinstance(record, EndRecord))
    assert (end.camera, end.captured_total) == ("second", 0)
    assert "one too many: max_streams = 1 are open" in end.reason
    assert "MiB for 4 frames of 22 tokens and 4 x 6 tokens of history" in end.reason
    (line,) = (line for line in log_of(service) if line["event"] == "failed")
    assert (line["camera"], line["reason"], line["level"]) == ("second", end.reason, "error")


def test_systemd_is_told_of_loading_readiness_reloading_and_stopping(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("a", "synthetic:?fps=50&width=160&height=120"))
    with running(config, watchdog_s=1.0) as service:
        loading = service.notified("READY=1")
        assert any("EXTEND_TIMEOUT_USEC=" in text for text in loading)
        assert not any("WATCHDOG" in text for text in loading), "the watchdog is fed only once the service is up"
        service.notified("WATCHDOG=1", timeout_s=1.0)
        service.notified("STATUS=cameras: 1 running; ", timeout_s=5.0)

        service.process.send_signal(signal.SIGHUP)
        told = service.notified("RELOADING=1", timeout_s=5.0)
        assert "MONOTONIC_USEC=" in told[-1]
        service.notified("READY=1", timeout_s=5.0)

        code, took_s = service.stop()
        assert (code, took_s < 3.0) == (0, True)
        service.notified("STOPPING=1", timeout_s=1.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_before_the_service_is_up_is_a_stop_like_any_other(tmp_path: Path, number: signal.Signals) -> None:
    config = write_config(tmp_path, camera("a", "synthetic:"))
    with running(config) as service:
        service.notified("STATUS=loading")  # torch is not imported yet
        assert service.stop(number)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_every_camera_in_order_with_counters_that_add_up(tmp_path: Path, number: int) -> None:
    cameras = "".join(camera(name, "synthetic:?fps=60&width=160&height=120") for name in ("a", "b"))
    with subscriber(tmp_path) as records_in, running(write_config(tmp_path, cameras)) as service:
        receive_until(records_in, lambda record: isinstance(record, FeaturesRecord) and record.seq == 10)
        children = processes_of(service.process.pid)
        assert len(children) == 2
        service.process.send_signal(number)
        sent_at = time.monotonic()
        records = receive_until(records_in, is_end)
        records += receive_until(records_in, is_end)
        assert service.process.wait(10) == 0
        assert time.monotonic() - sent_at < 3.0
    ends = [record for record in records if isinstance(record, EndRecord)]
    assert {end.camera for end in ends} == {"a", "b"}
    for end in ends:
        assert end.reason == "stopped"
        assert end.captured_total == end.published_total + end.dropped_total + end.failed_total
        assert not end.gaps
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_nothing_is_said_of_a_camera_after_its_end(tmp_path: Path) -> None:
    """While others take their time to end, a status would say of it that it runs."""
    config = write_config(tmp_path, "".join(camera(name, "synthetic:?fps=20&width=160&height=120") for name in "ab"))
    often = {"RETINAD_PUBLISH__HEARTBEAT_S": "0.1"}
    with subscriber(tmp_path) as records_in, running(config, env=often) as service:
        receive_until(records_in, record_of("a", 5))
        os.kill(processes_of(service.process.pid)[1], signal.SIGSTOP)  # it has to be killed, after 0.3 s
        service.process.send_signal(signal.SIGTERM)
        records = receive_until(records_in, is_end)
        records += receive_until(records_in, is_end)
        assert service.process.wait(10) == 0
    first = next(record for record in records if isinstance(record, EndRecord))
    after = records[records.index(first) + 1 :]
    assert {record.camera for record in after if not isinstance(record, HelloRecord)} == {"a", "b"} - {first.camera}


def test_a_reload_exchanges_cameras_and_the_others_lose_nothing(tmp_path: Path) -> None:
    stays = camera("stays", "synthetic:?fps=40&width=160&height=120", mode="lossless")
    config = write_config(tmp_path, stays + camera("goes", "synthetic:?fps=40&width=160&height=120"))
    with subscriber(tmp_path) as records_in, running(config) as service:
        receive_until(records_in, record_of("stays", 5))
        write_config(tmp_path, stays + camera("comes", "synthetic:?fps=40&width=160&height=120"))
        service.process.send_signal(signal.SIGHUP)
        records = receive_until(records_in, record_of("comes"))
        records += receive_until(records_in, lambda record: isinstance(record, FeaturesRecord) and record.seq >= 5)

        config.write_text("[publish]\nbuffer_md = 3\n")
        service.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 5
        while not any("old one stays" in str(line["event"]) for line in log_of(service)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        records += receive_until(records_in, record_of("stays"))
        assert service.stop()[0] == 0
    assert [record.camera for record in records if isinstance(record, EndRecord)] == ["goes"]
    assert not any(record.gaps for record in features_of(records, "stays"))
    seqs = [record.seq for record in features_of(records, "stays")]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    (problem,) = (line for line in log_of(service) if "old one stays" in str(line["event"]))
    assert "buffer_mb" in str(problem)


def test_a_signal_to_the_whole_unit_begins_new_epochs_and_costs_no_record(tmp_path: Path) -> None:
    """As `systemctl kill` sends it: to the capture processes, too."""
    source = "synthetic:?fps=40&width=160&height=120"
    cameras = camera("with", source) + "stream = { epoch_frames = 1000 }\n" + camera("without", source)

    def renewed(record: Record) -> bool:
        return isinstance(record, FeaturesRecord) and record.epoch > 0 and record.epoch_frame >= 3

    with subscriber(tmp_path) as records_in, running(write_config(tmp_path, cameras)) as service:
        records = receive_until(records_in, record_of("with", 5)) + receive_until(records_in, record_of("without", 5))
        for pid in (service.process.pid, *processes_of(service.process.pid)):
            os.kill(pid, signal.SIGUSR1)
        while not all(any(map(renewed, features_of(records, name))) for name in ("with", "without")):
            records.append(records_in.receive())
        assert service.stop()[0] == 0
    for name, first in (("with", (1, 2)), ("without", (1, 0))):
        own = features_of(records, name)
        assert [record.seq for record in own] == list(range(len(own)))
        assert {record.stream_epoch for record in own} == {0}
        (one,) = (record for record in own if "reset" in record.flags)
        assert (one.epoch, one.epoch_frame) == first
    (line,) = (line for line in log_of(service) if line["event"] == "streams begin new epochs")
    assert line["cameras"] == ["with", "without"]


def test_a_changed_camera_goes_on_counting_with_a_new_stream_epoch(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("a", "synthetic:?fps=40&width=160&height=120"))
    with subscriber(tmp_path) as records_in, running(config) as service:
        before = receive_until(records_in, lambda record: isinstance(record, FeaturesRecord) and record.seq >= 5)
        write_config(tmp_path, camera("a", "synthetic:?fps=40&width=200&height=120"))
        service.process.send_signal(signal.SIGHUP)
        after = receive_until(
            records_in, lambda record: isinstance(record, FeaturesRecord) and record.stream_epoch == 1
        )
        assert service.stop()[0] == 0
    assert features_of(before)[-1].stream_epoch == 0
    first = features_of(after)[-1]
    assert (first.seq, first.source_size, first.instance) == (0, (200, 120), features_of(before)[-1].instance)
    (end,) = (record for record in after if isinstance(record, EndRecord))
    status = next(r for r in after if isinstance(r, StatusRecord) and r.stream_epoch == 1 and r.state == "running")
    assert status.captured_total >= end.captured_total


def test_a_late_subscriber_learns_the_model_and_the_cameras_at_once(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("a", "synthetic:?fps=20&width=160&height=120"), publish="#")
    with running(config) as service:
        service.notified("READY=1")
        with subscriber(tmp_path, Kind.HELLO) as late:
            hello = late.receive(timeout_s=2.0)
        assert isinstance(hello, HelloRecord)
        assert hello.models[0].weights == "random:0"
        assert [camera.name for camera in hello.cameras] == ["a"]
        assert service.stop()[0] == 0


def test_a_port_in_use_is_said_within_a_second_of_starting_work(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("a", "synthetic:"))
    with running(config) as first:
        first.notified("READY=1")
        other = tmp_path / "other"
        other.mkdir()
        second_config = other / "config.toml"
        second_config.write_text(config.read_text())
        with running(second_config) as second:
            assert second.process.wait(20) == 69
            assert any("features.sock" in line for line in second.log.read_text().splitlines())
        assert first.stop()[0] == 0


def test_a_frame_that_fails_is_named_in_the_log_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    write_frames(folder, 4)
    (folder / "frame4.png").write_bytes(b"")
    assert cv2.imwrite(str(folder / "frame5.png"), np.zeros((4000, 2, 3), np.uint8))  # for no model
    config = write_config(tmp_path, camera("walk", folder, mode="lossless"))
    with subscriber(tmp_path) as records_in, running(config) as service:
        records = receive_until(records_in, is_end)
        assert service.process.wait(10) == 0
    end, last = records[-1], [record for record in records if isinstance(record, StatusRecord)][-1]
    assert isinstance(end, EndRecord)
    assert (end.captured_total, end.published_total, end.failed_total) == (6, 4, 2)
    assert last.decode_errors_total == 1
    assert last.last_frame_age_s is not None
    warnings = [line for line in log_of(service) if line["level"] == "warning" and line.get("camera") == "walk"]
    assert [line["event"] for line in warnings] == [
        f"left out: {folder}/frame4.png: the file is empty",
        "a frame gave no features",
    ]
    assert "4000" in str(warnings[1]["reason"])


def test_when_every_source_has_failed_the_exit_code_says_so(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("a", tmp_path / "nothing.mp4", retry=False), service="exit_when_done = true")
    with subscriber(tmp_path) as records_in, running(config) as service:
        end = receive_until(records_in, is_end)[-1]
        assert service.process.wait(10) == 66
    assert isinstance(end, EndRecord)
    assert "missing" in end.reason


def test_every_log_line_is_json_and_names_no_secret(tmp_path: Path) -> None:
    secret = "s3cret%40x"
    config = write_config(
        tmp_path,
        camera("bad", f"http://admin:{secret}@127.0.0.1:9/x?password=s3cret2", retry=False)
        + camera("broken", tmp_path / "broken.mp4", retry=False),
        service='exit_when_done = true\nlog_level = "debug"',
    )
    (tmp_path / "broken.mp4").write_text("hello\n" * 100)
    with subscriber(tmp_path) as records_in, running(config) as service:
        records = receive_until(records_in, is_end) + receive_until(records_in, is_end)
        cmdline = Path(f"/proc/{service.process.pid}/cmdline").read_bytes() if service.process.poll() is None else b""
        assert service.process.wait(10) == 66
    assert log_of(service)
    for output in (service.log.read_text(), cmdline.decode(), repr(records)):
        assert "s3cret" not in output


def test_a_reload_that_never_comes_back_is_given_up_and_the_next_one_is_taken(tmp_path: Path) -> None:
    cameras = camera("a", "synthetic:?fps=20&width=160&height=120")
    config = write_config(tmp_path, cameras)
    with running(config) as service:
        service.notified("READY=1")
        config.unlink()
        os.mkfifo(config)
        service.process.send_signal(signal.SIGHUP)
        service.notified("RELOADING=1")
        service.notified("READY=1")
        config.unlink()
        write_config(tmp_path, cameras)
        service.process.send_signal(signal.SIGHUP)
        service.notified("READY=1")
        assert service.stop()[0] == 0
    events = [line["event"] for line in log_of(service)]
    assert events.index("the new config cannot be read, the old one stays") < events.index("reloaded")


def test_a_frame_that_the_model_cannot_take_is_counted_and_the_log_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    paths = write_frames(folder, 6)
    for path in paths[1:4]:
        cv2.imwrite(str(path), np.zeros((1, 3000, 3), np.uint8))
    config = write_config(tmp_path, camera("a", folder, mode="lossless"), service="exit_when_done = true")
    with subscriber(tmp_path) as records_in, running(config) as service:
        end = receive_until(records_in, is_end)[-1]
        assert service.process.wait(10) == 0
    assert isinstance(end, EndRecord)
    assert (end.captured_total, end.published_total, end.dropped_total, end.failed_total) == (6, 3, 0, 3)
    lines = [line for line in log_of(service) if line["event"] == "a frame gave no features"]
    assert [(line["camera"], line["source_seq"]) for line in lines] == [("a", 1)]
    assert "3000" in str(lines[0]["reason"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_libraries_load_is_a_clean_end(tmp_path: Path, number: int) -> None:
    with running(write_config(tmp_path, camera("a", "synthetic:"))) as service:
        service.notified("STATUS=loading")
        code, took_s = service.stop(number)
        assert (code, took_s < 3.0) == (0, True)


def test_a_reload_asked_for_before_anything_is_imported_is_done_once_the_service_is_up(tmp_path: Path) -> None:
    """It would end the process otherwise, and for systemd that is no failure."""
    with running(write_config(tmp_path, camera("a", "synthetic:"))) as service:
        status, deadline = Path(f"/proc/{service.process.pid}/status"), time.monotonic() + 5
        while not re.search(r"^SigBlk:\s*[0-9a-f]*[13579bdf]$", status.read_text(), re.MULTILINE):
            assert time.monotonic() < deadline, "SIGHUP is never blocked"
        libraries = Path(f"/proc/{service.process.pid}/maps").read_text()
        service.process.send_signal(signal.SIGHUP)
        service.process.send_signal(signal.SIGUSR1)  # nothing to renew yet, but no end either
        assert not any(name in libraries for name in ("pydantic", "numpy", "zmq", "torch"))
        service.notified("READY=1")
        service.notified("RELOADING=1")
        service.notified("READY=1")
        assert service.stop()[0] == 0
    assert any(line["event"] == "reloaded" for line in log_of(service))


def test_a_reload_that_never_comes_back_does_not_keep_the_service_from_stopping(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("a", "synthetic:?fps=20&width=160&height=120"))
    with running(config) as service:
        service.notified("READY=1")
        config.unlink()
        os.mkfifo(config)  # as a dead file server: to open it takes for ever
        service.process.send_signal(signal.SIGHUP)
        service.notified("RELOADING=1")
        code, took_s = service.stop()
        assert (code, took_s < 3.0) == (0, True)


def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("a", "synthetic:?fps=20&width=160&height=120"))
    with running(config) as service:
        service.notified("READY=1")
        os.kill(service.process.pid, signal.SIGSTOP)  # both signals are there when it goes on
        os.kill(service.process.pid, signal.SIGTERM)
        os.kill(service.process.pid, signal.SIGINT)
        os.kill(service.process.pid, signal.SIGCONT)
        assert service.process.wait(3) in (128 + signal.SIGTERM, 128 + signal.SIGINT)


def test_one_line_says_what_runs_where(tmp_path: Path) -> None:
    with running(write_config(tmp_path, camera("a", "synthetic:"))) as service:
        service.notified("READY=1")
        (started,) = (line for line in log_of(service) if line["event"] == "started")
        assert service.stop()[0] == 0
    assert started["weights"] == "random:0"
    assert (started["model"], started["device"], started["cameras"]) == ("tiny", "cpu", ["a"])
    assert started["endpoints"] == [f"ipc://{tmp_path}/features.sock"]
    assert "torch " in str(started["versions"])
    parts = [float(str(started[f"{part}_s"])) for part in ("imports", "weights", "kernels", "warm_up")]
    total_s = float(str(started["ready_after_s"]))
    assert min(parts) >= 0
    assert total_s - 1 < sum(parts) <= total_s + 0.01, "what is left between the parts is little"
    assert started["kernels_compiled"] == 0, "dense attention on a CPU needs none"


def test_a_cache_directory_that_cannot_be_used_is_named_and_the_service_goes_on(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    config = write_config(tmp_path, camera("a", "synthetic:"))
    with running(config, env={"CACHE_DIRECTORY": str(tmp_path / "cache")}) as service:
        service.notified("READY=1")
        assert service.stop()[0] == 0
        (line,) = (line for line in log_of(service) if "compiled kernels" in str(line["event"]))
    assert line["event"] == f"compiled kernels are not kept: {tmp_path}/cache is not a folder"
    assert line["level"] == "warning"


def test_a_camera_that_is_faster_than_the_model_takes_nothing_from_a_slow_one(tmp_path: Path) -> None:
    fast = camera("fast", "synthetic:?fps=1000&width=160&height=120")
    slow = camera("slow", "synthetic:?fps=20&width=160&height=120", queue_frames=8)
    config = write_config(tmp_path, fast + slow, model="max_batch = 1")
    with subscriber(tmp_path) as records_in, running(config) as service:
        records = features_of(receive_until(records_in, record_of("slow", 25)))
        assert service.stop()[0] == 0
    ours = [record for record in records if record.camera == "slow"]
    assert [record.source_seq for record in ours] == list(range(len(ours))), "every frame of it"
    theirs = [record for record in records if record.camera == "fast"]
    assert theirs[-1].source_seq > theirs[-1].seq, "the fast one had frames to spare"
    assert len(theirs) > len(ours)
