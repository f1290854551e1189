"""The whole service when its model fails, hangs or does not load: a stub for the engine, everything else real."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from retinad.client import EndRecord, FeaturesRecord, Record, StatusRecord
from retinad.daemon.config.load import load_config
from retinad.daemon.exit_codes import ExitCode
from retinad.daemon.service import load
from retinad.pipeline.config import ModelConfig
from retinad.pipeline.engine.device_faults import MOST_IN_A_ROW
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.errors import DeviceError, ModelError

from ...deadlines import scaled
from ..faulty import AT, BUSY, ILLEGAL_ACCESS, FaultyEngine, out_of_memory
from ..in_process import SOURCE, WATCHDOG_S, Act, InProcessService, unfed_s, until
from ..records import ends_of, features_of, is_end, statuses_of
from ..service_rig import FAULTY, camera, receive_until, running, subscriber, write_config

SECRET = "s3cret"
UNREACHABLE = camera("door", f"http://admin:{SECRET}@127.0.0.1:9/x?password={SECRET}2")


@pytest.fixture(autouse=True)
def _same_threads_after() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


async def wait_for_the_end(records: list[Record]) -> None:
    await anyio.sleep(scaled(20))
    raise AssertionError("the service did not end")


def terminate_at(frame: int) -> Act:
    async def act(records: list[Record]) -> None:
        await until(lambda: any(record.source_seq >= frame for record in features_of(records)))
        os.kill(os.getpid(), signal.SIGTERM)

    return act


def assert_only_ends_after_the_fault(records: list[Record]) -> None:
    assert len(features_of(records)) <= AT
    assert {end.camera for end in ends_of(records)} == {"a", "door"}
    for end in ends_of(records):
        assert end.reason.startswith("the device failed: ")
        assert end.captured_total == end.published_total + end.dropped_total + end.failed_total
    assert isinstance(records[-1], EndRecord)
    assert SECRET not in repr(records)


def test_a_step_that_hangs_ends_the_process_with_70_and_the_log_says_where(tmp_path: Path) -> None:
    """systemd restarts after 70, but not after 78; the hung thread does not keep the process alive."""
    config = write_config(tmp_path, camera("a", SOURCE) + UNREACHABLE, model="step_timeout_s = 0.5")
    with subscriber(tmp_path) as records_in, running(config, program=(str(FAULTY), "hang")) as process:
        records = receive_until(records_in, lambda record: isinstance(record, FeaturesRecord))
        began = time.monotonic()
        while len(ends_of(records)) < 2:
            records += receive_until(records_in, is_end)
        assert process.wait() == ExitCode.FAULT
        assert time.monotonic() - began < scaled(5)
    assert_only_ends_after_the_fault(records)
    last = process.events()[-1]
    assert (last["level"], "step_timeout_s = 0.5" in str(last["event"])) == ("critical", True)
    (hung,) = (line for line in process.events() if line["event"] == "model step hangs")
    stack = hung["stack"]
    assert isinstance(stack, list)
    assert stack[-1].endswith("_fail")
    assert any("model_runner.py" in call for call in stack)
    assert SECRET not in process.log.read_text()


def test_a_broken_device_ends_the_service_and_only_ends_are_published_after_it(tmp_path: Path) -> None:
    cameras = camera("a", SOURCE) + UNREACHABLE
    stub = InProcessService(tmp_path, lambda config: FaultyEngine(config, ILLEGAL_ACCESS), cameras=cameras)
    with capture_logs() as log, pytest.raises(DeviceError, match="cpu failed: CUDA error: an illegal memory access"):
        stub.run(wait_for_the_end)
    assert_only_ends_after_the_fault(stub.records)
    assert SECRET not in repr(log)


def test_out_of_memory_costs_one_frame_and_the_epoch_and_the_stream_continues(tmp_path: Path) -> None:
    stub = InProcessService(tmp_path, lambda config: FaultyEngine(config, out_of_memory()))
    assert stub.run(terminate_at(AT + 3)) == ExitCode.OK
    records = features_of(stub.records)
    (first,) = (record for record in records if record.epoch == 1 and "reset" in record.flags)
    assert {record.epoch for record in records} == {0, 1}
    assert [record.seq for record in records] == list(range(len(records)))
    (end,) = ends_of(stub.records)
    assert end.failed_total == 1
    assert first.failed_total == 1


def test_a_device_that_stays_out_of_memory_is_given_up(tmp_path: Path) -> None:
    stub = InProcessService(tmp_path, lambda config: FaultyEngine(config, out_of_memory(), times=1000))
    with pytest.raises(DeviceError, match=rf"giving up on cpu: {MOST_IN_A_ROW} runs in a row failed, OutOfMemoryError"):
        stub.run(wait_for_the_end)
    (end,) = ends_of(stub.records)
    assert end.captured_total == end.published_total + end.dropped_total + end.failed_total
    assert end.failed_total >= MOST_IN_A_ROW


def test_one_frame_with_nan_is_flagged_and_later_ones_are_clean(tmp_path: Path) -> None:
    class Spoilt(FaultyEngine):
        def __init__(self, config: ModelConfig) -> None:
            super().__init__(config, 0.0)
            self.model_runner.model.get_submodule("patch_embed").register_forward_hook(self._spoil)

        def _spoil(self, module: object, arguments: object, output: torch.Tensor) -> torch.Tensor:
            return output * float("nan") if self._steps == AT else output

    stub = InProcessService(tmp_path, Spoilt)
    assert stub.run(terminate_at(AT + 4)) == ExitCode.OK
    flagged = [record for record in features_of(stub.records) if "nan" in record.flags]
    after = [record for record in features_of(stub.records) if record.seq > flagged[-1].seq]
    assert len(flagged) == 1
    assert after[0].epoch == flagged[0].epoch + 1
    assert all(np.isfinite(record["layer1/patch"]).all() for record in after)
    assert statuses_of(stub.records)[-1].nan_total == 1


def test_ready_follows_a_slow_load_and_every_frame_is_captured_later(tmp_path: Path) -> None:
    """And systemd is asked for more time while it loads."""
    made_ns: list[int] = []

    def slow(config: ModelConfig) -> Engine:
        time.sleep(1.0)
        made_ns.append(time.monotonic_ns())
        return FaultyEngine(config, 0.0)

    stub = InProcessService(tmp_path, slow)
    assert stub.run(terminate_at(3)) == ExitCode.OK
    ready = [at for at, text in stub.notifications if text == "READY=1"]
    assert ready[0] * 1e9 >= made_ns[0]
    asked = [at for at, text in stub.notifications if text.startswith("EXTEND_TIMEOUT_USEC=")]
    assert asked
    assert asked[0] < ready[0] - 0.9
    assert all(record.capture_monotonic_ns > made_ns[0] for record in features_of(stub.records))


def test_a_busy_device_is_retried_and_then_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PAUSE_S", 0.1)
    tries: list[int] = []

    def busy(config: ModelConfig) -> Engine:
        tries.append(1)
        if len(tries) == load.TRIES:
            raise DeviceError("cuda:0 failed: gone")
        raise DeviceError("cuda:0 failed: busy")

    stub = InProcessService(tmp_path, busy)
    with capture_logs() as log, pytest.raises(DeviceError, match="gone"):
        stub.run(wait_for_the_end)
    assert [line["problem"] for line in log if line["event"] == "device failed, retrying"] == [
        "cuda:0 failed: busy"
    ] * 2
    assert not any(text == "READY=1" for _, text in stub.notifications)


@pytest.mark.parametrize("error", [BUSY, out_of_memory()], ids=["busy", "out of memory"])
def test_failures_while_loading_are_the_services_own_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(config: ModelConfig) -> Engine:
        raise error

    monkeypatch.setattr("retinad.pipeline.engine.open.Engine", fail)
    config = load_config(write_config(tmp_path, camera("a", SOURCE)), {})
    with pytest.raises(ModelError, match=r"busy or unavailable|has too little memory for the model") as caught:
        load.make_engine(config)
    assert isinstance(caught.value, DeviceError) is (error is BUSY)


def test_a_stop_with_a_step_that_hangs_is_over_within_three_seconds(tmp_path: Path) -> None:
    """Its phases, each with its own limit, add up to less."""
    release = threading.Event()

    class Hung(FaultyEngine):
        def _fail(self, model: object, arguments: object) -> None:
            if self._steps == AT:
                release.wait(20)

    async def act(records: list[Record]) -> None:
        await until(lambda: any(record.source_seq >= AT - 2 for record in features_of(records)))
        await anyio.sleep(0.3)
        began.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    began: list[float] = []
    stub = InProcessService(tmp_path, lambda config: Hung(config, 0.0))
    try:
        assert stub.run(act) == ExitCode.OK
        assert time.monotonic() - began[0] < scaled(2.6)
    finally:
        release.set()
    lag_ms = [status.service.loop_lag_ms for status in statuses_of(stub.records)]
    assert max(lag_ms) < scaled(500)  # the event loop waits for nothing
    (end,) = ends_of(stub.records)
    assert end.captured_total == end.published_total + end.dropped_total + end.failed_total


@pytest.mark.parametrize("when", ["loading", "draining"])
def test_a_second_signal_ends_the_process_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    class Ended(BaseException):
        pass

    def exit_now(code: int) -> None:
        raise Ended(code)

    def slow(config: ModelConfig) -> Engine:
        if when == "loading":
            release.wait(20)
        return FaultyEngine(config, 5.0)

    async def act(records: list[Record]) -> None:
        if when == "draining":
            await until(lambda: any(record.source_seq >= AT - 2 for record in features_of(records)))
        await anyio.sleep(0.3)
        os.kill(os.getpid(), signal.SIGTERM)
        await anyio.sleep(0.2)
        began.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    release, began = threading.Event(), list[float]()
    monkeypatch.setattr(os, "_exit", exit_now)
    stub = InProcessService(tmp_path, slow)
    try:
        with pytest.raises(Ended, match=str(128 + signal.SIGTERM)):
            stub.run(act)
    finally:
        release.set()


def test_a_camera_that_accepts_and_never_answers_starves_no_watchdog_and_delays_no_stop(tmp_path: Path) -> None:
    async def act(records: list[Record]) -> None:
        await until(lambda: any(isinstance(record, StatusRecord) for record in records))
        await anyio.sleep(1.5 * WATCHDOG_S)
        began.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    began: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as blackhole:
        dead = camera("a", f"http://127.0.0.1:{blackhole.getsockname()[1]}/x")
        stub = InProcessService(tmp_path, lambda config: FaultyEngine(config, 0.0), cameras=dead)
        assert stub.run(act) == ExitCode.OK
    assert time.monotonic() - began[0] < scaled(3.0)
    assert unfed_s(stub.notifications) < scaled(WATCHDOG_S)
    assert sum(text == "WATCHDOG=1" for _, text in stub.notifications) >= 3
