"""The whole service as a process: real sources, real sockets, real signals, and a real NOTIFY_SOCKET."""

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from retinad.client import EndRecord, FeaturesRecord, HelloRecord, Kind, Record
from retinad.pipeline.frame_queue import FRESH_S, PAUSE_S

from ...deadlines import scaled
from ..records import features_of, is_end, record_of
from ..reference import engine_features
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


@dataclass(frozen=True)
class Steady:
    """A service that tests share and do not disturb."""

    config: Path
    service: ServiceProcess


@pytest.mark.parametrize("real", [False, True], ids=["synthetic", "photographs"])
def test_a_lossless_folder_is_published_once_with_one_end_and_the_engines_own_numbers(
    tmp_path: Path, real: bool
) -> None:
    if real and not FRAMES.is_dir():
        pytest.skip("the photographs are not beside this checkout")
    folder = tmp_path / "images"
    paths = write_frames(folder, 24) if not real else sorted(FRAMES.glob("*.jpg"))
    if real:
        shutil.copytree(FRAMES, folder, ignore=shutil.ignore_patterns("*.md"))
    config = write_config(tmp_path, camera("walk", folder, mode="lossless"), service="exit_when_done = true")
    with subscriber(tmp_path) as records_in, running(config) as service:
        records = receive_until(records_in, is_end)
        assert service.wait() == 0

    published = features_of(records)
    assert [record.seq for record in published] == list(range(24))
    assert [record.source_seq for record in published] == list(range(24))
    assert not any(record.gaps for record in published)
    end = records[-1]
    assert isinstance(end, EndRecord)
    assert (end.captured_total, end.published_total, end.dropped_total, end.failed_total) == (24, 24, 0, 0)
    assert (end.reason, end.next_seq, end.expected_total, end.gaps) == ("finished", 24, 24, ())
    for record, expected in zip(published, engine_features(config, paths), strict=True):
        assert list(record.tensors) == [tensor.name for tensor in expected.tensors]
        for tensor in expected.tensors:
            np.testing.assert_array_equal(record[tensor.name], tensor.data)


def test_systemd_is_notified_of_loading_readiness_reloading_and_stopping(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("a", "synthetic:?fps=50&width=160&height=120"))
    with running(config, watchdog_s=1.0) as service:
        loading = service.notified("READY=1")
        assert any("EXTEND_TIMEOUT_USEC=" in text for text in loading)
        assert not any("WATCHDOG" in text for text in loading), "the watchdog is fed only once the service is up"
        service.notified("WATCHDOG=1", timeout_s=1.0)
        service.notified("STATUS=cameras: 1 running; ", timeout_s=5.0)

        service.process.send_signal(signal.SIGHUP)
        reloading = service.notified("RELOADING=1", timeout_s=5.0)
        assert "MONOTONIC_USEC=" in reloading[-1]
        service.notified("READY=1", timeout_s=5.0)

        code, took_s = service.stop()
        assert (code, took_s < scaled(3.0)) == (0, True)
        service.notified("STOPPING=1", timeout_s=1.0)


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
        assert service.wait() == 0
        assert time.monotonic() - sent_at < scaled(3.0)
    ends = [record for record in records if isinstance(record, EndRecord)]
    assert {end.camera for end in ends} == {"a", "b"}
    for end in ends:
        assert end.reason == "stopped"
        assert end.captured_total == end.published_total + end.dropped_total + end.failed_total
        assert not end.gaps
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_no_status_of_a_camera_follows_its_end(tmp_path: Path) -> None:
    """While other cameras are still ending, a status would report it as running."""
    config = write_config(tmp_path, "".join(camera(name, "synthetic:?fps=20&width=160&height=120") for name in "ab"))
    often = {"RETINAD_PUBLISH__HEARTBEAT_S": "0.1"}
    with subscriber(tmp_path) as records_in, running(config, env=often) as service:
        receive_until(records_in, record_of("a", 5))
        os.kill(processes_of(service.process.pid)[1], signal.SIGSTOP)  # it must be killed, after 0.3 s
        service.process.send_signal(signal.SIGTERM)
        records = receive_until(records_in, is_end)
        records += receive_until(records_in, is_end)
        assert service.wait() == 0
    first = next(record for record in records if isinstance(record, EndRecord))
    after = records[records.index(first) + 1 :]
    assert {record.camera for record in after if not isinstance(record, HelloRecord)} == {"a", "b"} - {first.camera}


def test_a_signal_to_the_whole_unit_begins_new_epochs_and_costs_no_record(tmp_path: Path) -> None:
    """`systemctl kill` signals the capture processes too."""
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
    (line,) = (line for line in service.events() if line["event"] == "streams begin new epochs")
    assert line["cameras"] == ["with", "without"]


def test_the_exit_code_tells_that_every_source_failed(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("a", tmp_path / "nothing.mp4", retry=False), service="exit_when_done = true")
    with subscriber(tmp_path) as records_in, running(config) as service:
        end = receive_until(records_in, is_end)[-1]
        assert service.wait() == 66
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
        assert service.wait() == 66
    assert service.events()
    for output in (service.log.read_text(), cmdline.decode(), repr(records)):
        assert "s3cret" not in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_libraries_load_is_clean_and_quick(tmp_path: Path, number: int) -> None:
    with running(write_config(tmp_path, camera("a", "synthetic:"))) as service:
        service.notified("STATUS=loading")  # torch is not imported yet
        code, took_s = service.stop(number)
        assert (code, took_s < scaled(3.0)) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_before_any_import_is_clean(tmp_path: Path, number: signal.Signals) -> None:
    with running(write_config(tmp_path, camera("a", "synthetic:"))) as service:
        status, deadline = Path(f"/proc/{service.process.pid}/status"), time.monotonic() + scaled(5)
        while not _is_caught(status.read_text(), number):
            assert time.monotonic() < deadline, f"{number.name} is never caught"
        libraries = Path(f"/proc/{service.process.pid}/maps").read_text()
        code, took_s = service.stop(number)
        assert (code, took_s < scaled(3.0), service.log.read_text()) == (0, True, "")
        assert not any(name in libraries for name in ("pydantic", "numpy", "zmq", "torch"))


def _is_caught(status: str, number: signal.Signals) -> bool:
    # Python itself catches SIGINT from its start, so SIGTERM shows that the handlers are set.
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    wanted = 1 << (signal.SIGTERM - 1) | 1 << (number - 1)
    return found is not None and int(found[1], 16) & wanted == wanted


def test_a_reload_requested_before_any_import_happens_once_the_service_is_up(tmp_path: Path) -> None:
    """By default SIGHUP ends the process, which systemd takes for a clean exit."""
    with running(write_config(tmp_path, camera("a", "synthetic:"))) as service:
        status, deadline = Path(f"/proc/{service.process.pid}/status"), time.monotonic() + 5
        while not re.search(r"^SigBlk:\s*[0-9a-f]*[13579bdf]$", status.read_text(), re.MULTILINE):
            assert time.monotonic() < deadline, "SIGHUP is never blocked"
        libraries = Path(f"/proc/{service.process.pid}/maps").read_text()
        service.process.send_signal(signal.SIGHUP)
        service.process.send_signal(signal.SIGUSR1)  # nothing to renew yet, but it must not end the process
        assert not any(name in libraries for name in ("pydantic", "numpy", "zmq", "torch"))
        service.notified("READY=1")
        service.notified("RELOADING=1")
        service.notified("READY=1")
        assert service.stop()[0] == 0
    assert any(line["event"] == "reloaded" for line in service.events())


def test_a_reload_that_blocks_does_not_delay_a_stop(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("a", "synthetic:?fps=20&width=160&height=120"))
    with running(config) as service:
        service.notified("READY=1")
        config.unlink()
        os.mkfifo(config)  # like a dead file server: opening it blocks forever
        service.process.send_signal(signal.SIGHUP)
        service.notified("RELOADING=1")
        code, took_s = service.stop()
        assert (code, took_s < scaled(3.0)) == (0, True)


def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("a", "synthetic:?fps=20&width=160&height=120"))
    with running(config) as service:
        service.notified("READY=1")
        os.kill(service.process.pid, signal.SIGSTOP)  # both signals are pending when it continues
        os.kill(service.process.pid, signal.SIGTERM)
        os.kill(service.process.pid, signal.SIGINT)
        os.kill(service.process.pid, signal.SIGCONT)
        assert service.wait(3) in (128 + signal.SIGTERM, 128 + signal.SIGINT)


def test_an_unusable_cache_directory_is_logged_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    config = write_config(tmp_path, camera("a", "synthetic:"))
    with running(config, env={"CACHE_DIRECTORY": str(tmp_path / "cache")}) as service:
        service.notified("READY=1")
        assert service.stop()[0] == 0
        (line,) = (line for line in service.events() if "kernel cache" in str(line["event"]))
    assert line["event"] == f"kernel cache disabled: {tmp_path}/cache is not a folder"
    assert line["level"] == "warning"


def test_a_camera_faster_than_the_model_costs_a_slow_camera_no_frame(tmp_path: Path) -> None:
    fast = camera("fast", "synthetic:?fps=1000&width=160&height=120")
    slow = camera("slow", "synthetic:?fps=20&width=160&height=120", queue_frames=8)
    config = write_config(tmp_path, fast + slow, model="max_batch = 1")
    with subscriber(tmp_path) as records_in, running(config) as service:
        records = features_of(receive_until(records_in, record_of("slow", 25)))
        assert service.stop()[0] == 0
    ours = [record for record in records if record.camera == "slow"]
    assert [record.source_seq for record in ours] == list(range(len(ours))), "every frame of the slow camera"
    theirs = [record for record in records if record.camera == "fast"]
    assert theirs[-1].source_seq > theirs[-1].seq, "the fast camera dropped frames"
    assert len(theirs) > len(ours)


# One service for the tests that only look at it


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Steady]:
    """A running service with one camera."""
    folder = tmp_path_factory.mktemp("steady")
    config = write_config(folder, camera("a", "synthetic:?fps=20&width=160&height=120"))
    with running(config) as service:
        service.notified("READY=1")
        yield Steady(config, service)
        assert service.stop()[0] == 0


def test_a_late_subscriber_learns_the_model_and_the_cameras_at_once(steady: Steady) -> None:
    with subscriber(steady.config.parent, Kind.HELLO) as late:
        hello = late.receive(timeout_s=scaled(2.0))
    assert isinstance(hello, HelloRecord)
    assert hello.models[0].weights == "random:0"
    assert [camera.name for camera in hello.cameras] == ["a"]


def test_an_endpoint_in_use_is_reported_before_the_model_loads(steady: Steady, tmp_path: Path) -> None:
    second_config = tmp_path / "config.toml"
    second_config.write_text(steady.config.read_text())
    with running(second_config) as second:
        assert second.wait(20) == 69
        assert any("features.sock" in line for line in second.log.read_text().splitlines())


def test_the_started_line_describes_the_service(steady: Steady) -> None:
    (started,) = (line for line in steady.service.events() if line["event"] == "started")
    assert started["weights"] == "random:0"
    assert (started["model"], started["device"], started["cameras"]) == ("tiny", "cpu", ["a"])
    assert started["endpoints"] == [f"ipc://{steady.config.parent}/features.sock"]
    assert "torch " in str(started["versions"])
    phases = [float(started[f"{phase}_s"]) for phase in ("imports", "weights", "kernels", "warm_up")]
    total_s = float(started["ready_after_s"])
    assert min(phases) >= 0
    assert total_s - 1 < sum(phases) <= total_s + 0.01, "the phases add up to almost the whole time"
    assert started["kernels_compiled"] == 0, "dense attention on a CPU needs none"


@pytest.mark.parametrize("all_processes", [True, False], ids=["all its processes", "the service alone"])
def test_after_a_stop_of_the_process_no_old_frames_are_published(tmp_path: Path, all_processes: bool) -> None:
    """As when a laptop sleeps: the picture from before says nothing. One frame may have been in the model."""
    config = write_config(tmp_path, camera("a", "synthetic:?fps=20&width=160&height=120", fps=20, queue_frames=8))
    with running(config) as service, subscriber(tmp_path, Kind.FEATURES) as source:
        service.notified("READY=1")
        for _ in range(5):
            source.receive()
        pids = [service.process.pid, *(processes_of(service.process.pid) if all_processes else ())]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        while True:  # what was sent before
            try:
                source.receive(0.3)
            except TimeoutError:
                break
        time.sleep(PAUSE_S + 1.5)
        resumed_ns = time.time_ns()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        records = [source.receive() for _ in range(10)]
        said = [event for event in service.events() if event["event"] == "stood still"]
        assert service.stop()[0] == 0
    ages_s = [(resumed_ns - record.capture_unix_ns) / 1e9 for record in records if isinstance(record, FeaturesRecord)]
    assert sum(age_s > FRESH_S for age_s in ages_s) <= 1
    assert len(said) == 1
    assert said[0]["seconds"] >= PAUSE_S
