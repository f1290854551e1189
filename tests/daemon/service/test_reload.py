"""Reloads under difficult conditions: a config that cannot be read, and a storm of requests."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
import torch
from structlog.testing import capture_logs

from retinad.client import EndRecord, Record, StatusRecord
from retinad.daemon.config.load import ServiceConfig, load_config
from retinad.daemon.exit_codes import ExitCode
from retinad.daemon.service import reload
from retinad.daemon.service.reload_plan import keeps_memory
from retinad.daemon.service.systemd import Notifier
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.errors import AccessError
from retinad.pipeline.frames import OutputKind
from retinad.pipeline.view_config import Calibration, KnownDistance, Mask, MaskFill, ViewConfig

from ...deadlines import scaled
from ..faulty import FaultyEngine
from ..in_process import WATCHDOG_S, InProcessService, unfed_s, until
from ..records import features_of, record_of, statuses_of
from ..service_rig import write_config


@pytest.fixture(autouse=True)
def _same_threads_after() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_reload_that_blocks_times_out_and_the_next_one_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "_READ_S", 0.5)
    stub = InProcessService(tmp_path, lambda config: FaultyEngine(config, 0.0))

    async def act(records: list[Record]) -> None:
        def reloads() -> tuple[int, int]:
            service = statuses_of(records)[-1].service
            return service.reloads, service.reload_failures

        await until(lambda: bool(features_of(records)) and bool(statuses_of(records)))
        content = stub.path.read_text()
        stub.path.unlink()
        os.mkfifo(stub.path)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: reloads() == (1, 1))
        writer = os.open(stub.path, os.O_RDWR | os.O_NONBLOCK)  # releases the thread that still opens the pipe
        stub.path.unlink()
        os.close(writer)
        stub.path.write_text(content)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: reloads() == (2, 1))
        os.kill(os.getpid(), signal.SIGTERM)

    with capture_logs() as log:
        assert stub.run(act) == ExitCode.OK
    events = [line["event"] for line in log]
    assert events.index("reload failed: config not readable, keeping the old one") < events.index("reloaded")
    received = [text.partition("\n")[0] for _, text in stub.notifications if not text.startswith(("STATUS", "WATCH"))]
    reload_pair = ["RELOADING=1", "READY=1"]
    assert received[received.index("READY=1") :] == ["READY=1", *reload_pair, *reload_pair, "STOPPING=1"]


def test_a_storm_of_reload_requests_becomes_a_few_reloads_and_each_is_counted(tmp_path: Path) -> None:
    stub = InProcessService(tmp_path, lambda config: FaultyEngine(config, 0.0))

    async def act(records: list[Record]) -> None:
        def services() -> list[tuple[int, int]]:
            return [(r.service.reloads, r.service.reload_failures) for r in records if isinstance(r, StatusRecord)]

        await until(lambda: bool(features_of(records)))
        for _ in range(100):
            os.kill(os.getpid(), signal.SIGHUP)
            await anyio.sleep(0.002)
        await until(lambda: services()[-1][0] >= 1)
        stub.path.write_text("[publish]\nbuffer_md = 3\n")
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: services()[-1][1] == 1)
        assert services()[-1][0] <= 4
        os.kill(os.getpid(), signal.SIGTERM)

    assert stub.run(act) == ExitCode.OK
    assert [record.seq for record in features_of(stub.records)] == list(range(len(features_of(stub.records))))
    received = [text.partition("\n")[0] for _, text in stub.notifications]
    assert received.count("RELOADING=1") <= 4
    assert received.count("READY=1") == 1 + received.count("RELOADING=1")
    assert unfed_s(stub.notifications) < scaled(WATCHDOG_S)


def test_a_reload_of_rates_and_timeouts_keeps_the_memory(tmp_path: Path) -> None:
    stub = InProcessService(tmp_path, lambda config: FaultyEngine(config, 0.0))

    async def act(records: list[Record]) -> None:
        await until(lambda: any(map(record_of("a", 5), records)))
        text = stub.path.read_text()
        stub.path.write_text(f"{text}\nfps = 20\nqueue_frames = 7\nstall_timeout_s = 3\n")
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: any(record.stream_epoch == 1 for record in features_of(records)))
        stub.path.write_text(f"{text}\nstream = {{ window = 3 }}\n")
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: any(record.stream_epoch == 2 for record in features_of(records)))
        os.kill(os.getpid(), signal.SIGTERM)

    with capture_logs() as log:
        assert stub.run(act) == ExitCode.OK
    assert [line["memory_kept"] for line in log if line["event"] == "reloaded"] == [["a"], []]
    records = features_of(stub.records)
    kept = [record for record in records if record.stream_epoch < 2]
    assert [(record.epoch, record.epoch_frame) for record in kept] == [(0, number) for number in range(len(kept))]
    assert not any("reset" in record.flags for record in kept)
    first = next(record for record in records if record.stream_epoch == 2)
    assert (first.epoch_frame, "warmup" in first.flags) == (0, True)
    ends = [record for record in stub.records if isinstance(record, EndRecord)]
    assert len(ends) == 2, "of the camera that started over, and of the service"
    (end,) = ends[-1:]
    assert end.captured_total == end.published_total + end.dropped_total + end.failed_total


def test_outputs_that_the_running_model_does_not_have_wait_for_a_restart(tmp_path: Path) -> None:
    """A camera that has an older choice keeps it; an added one is refused alone, with the reason."""
    stub = InProcessService(tmp_path, lambda config: FaultyEngine(config, 0.0))

    async def act(records: list[Record]) -> None:
        await until(lambda: any(map(record_of("a", 3), records)))
        text = stub.path.read_text()
        assert "[model]\n" in text
        wider = text.replace("[model]\n", '[model]\noutputs = ["features", "pose"]\n')
        added = '[[camera]]\nname = "late"\nsource = "synthetic:"\noutputs = ["pose"]\n'
        stub.path.write_text(f'{wider}\noutputs = ["pose"]\nfps = 20\n{added}')
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: ("late", "failed") in [(status.camera, status.state) for status in statuses_of(records)])
        await until(lambda: any(record.stream_epoch == 1 for record in features_of(records)))
        os.kill(os.getpid(), signal.SIGTERM)

    with capture_logs() as log:
        assert stub.run(act) == ExitCode.OK
    (reloaded,) = [line for line in log if line["event"] == "reloaded"]
    assert reloaded["memory_kept"] == ["a"]
    assert any("model.outputs" in str(line) for line in log)
    reasons = [str(line["reason"]) for line in log if line.get("camera") == "late" and "reason" in line]
    assert any("some of the model's outputs (features), got pose" in reason for reason in reasons)


@pytest.mark.anyio
async def test_keys_that_others_can_change_fail_a_reload(tmp_path: Path) -> None:
    def load() -> ServiceConfig:
        raise AccessError("other users can write to the file /k (mode 666): chmod go-w /k", "curve.authorized_keys_dir")

    config = load_config(write_config(tmp_path, '[[camera]]\nname = "a"\nsource = "synthetic:"\n'), {})
    with Notifier({}) as notifier, capture_logs() as log:
        reloader = reload.Reloader(config, load, lambda config: None, notifier)
        assert await reloader._read() is None
    (line,) = log
    assert line["event"] == "reload failed: keys not usable, keeping the old config and keys"
    assert "publish.curve.authorized_keys_dir: other users can write" in line["problems"]


def test_what_a_reload_of_known_things_costs() -> None:
    """A memory holds what the model saw: another lens or a filled mask makes it worthless, another scale does not.

    Other outputs need another memory too.
    """
    lens = Calibration((64, 48), (50.0, 50.0), (31.5, 23.5), "brown", (-0.2, 0.05))
    mask = Mask(polygons=(((0.0, 0.0), (9.0, 0.0), (0.0, 9.0)),))
    camera = CameraConfig("a", "synthetic:", view=ViewConfig(calibration=lens))
    kept = (
        ViewConfig(calibration=lens, metres_per_unit=2.0),
        ViewConfig(calibration=lens, mask=mask),
        ViewConfig(calibration=lens, known_distance=KnownDistance(1.0, 0.0, 1.0)),
        ViewConfig(calibration=replace(lens, file="/elsewhere.yaml")),
    )
    for view in kept:
        assert keeps_memory(camera, replace(camera, view=view))
    for view in (
        ViewConfig(),
        ViewConfig(calibration=replace(lens, coefficients=(-0.3, 0.05))),
        ViewConfig(calibration=lens, mask=mask, mask_fill=MaskFill.BLACK),
    ):
        assert not keeps_memory(camera, replace(camera, view=view))
    assert not keeps_memory(camera, replace(camera, outputs=(OutputKind.POSE,)))
