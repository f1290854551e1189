"""What the whole service does when its model fails, hangs or is not to be had: stubs of it, and all else real."""

import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import anyio
import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from retinad.client import EndRecord, FeaturesRecord, Record, StatusRecord
from retinad.daemon.config.load import load_config
from retinad.daemon.errors import only_error
from retinad.daemon.exit_codes import ExitCode
from retinad.daemon.service import load, service
from retinad.daemon.service.service import Dependencies, serve
from retinad.daemon.service.systemd import Notifier
from retinad.pipeline.config import ModelConfig
from retinad.pipeline.engine.device_faults import MOST_IN_A_ROW
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.errors import DeviceError, ModelError

from ..faulty import AT, BUSY, ILLEGAL_ACCESS, FaultyEngine, out_of_memory
from ..service_rig import FAULTY, receive_until, running, subscriber, write_config
from .test_service import camera, features_of, is_end, log_of

SOURCE = "synthetic:?fps=40&width=160&height=120"
SECRET = "s3cret"
WATCHDOG_S = 1.0
UNREACHABLE = camera("door", f"http://admin:{SECRET}@127.0.0.1:9/x?password={SECRET}2")
Act = Callable[[list[Record]], Awaitable[None]]


@pytest.fixture(autouse=True)
def _same_threads_after() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


class Service:
    """Runs the service in this process, with an engine of the test's; notes what was published and systemd was told."""

    def __init__(
        self, folder: Path, make_engine: Callable[[ModelConfig], Engine], *, cameras: str = camera("a", SOURCE)
    ) -> None:
        self.records: list[Record] = []
        self.told: list[tuple[float, str]] = []
        self.path = write_config(folder, cameras)
        self._make_engine = make_engine
        self._folder = folder

    def run(self, act: Act) -> ExitCode:
        """Serve while `act` does what it does to the service."""

        async def main() -> ExitCode:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(act, self.records)
                try:
                    return await serve(load_config(self.path, {}), dependencies, notifier)
                finally:
                    tasks.cancel_scope.cancel()

        dependencies = Dependencies(
            load_config=lambda: load_config(self.path, {}),
            configure=lambda config: None,
            versions={},
            make_engine=lambda config: self._make_engine(config.model),
        )
        with self._listening(), self._manager() as environment, Notifier(environment) as notifier:
            try:
                return anyio.run(main)
            except BaseExceptionGroup as group:
                raise only_error(group) from None

    @contextmanager
    def _listening(self) -> Iterator[None]:
        def listen() -> None:
            with subscriber(self._folder) as source:
                while not over.is_set():
                    try:
                        self.records.append(source.receive(0.2))
                    except TimeoutError:
                        continue

        over = threading.Event()
        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @contextmanager
    def _manager(self) -> Iterator[dict[str, str]]:
        def listen(told: socket.socket) -> None:
            with told:
                while text := told.recv(4096):
                    self.told.append((time.monotonic(), text.decode()))

        address = str(self._folder / "notify.sock")
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(address)
        thread = threading.Thread(target=listen, args=(manager,))
        thread.start()
        try:
            yield {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
                last.sendto(b"", address)
            thread.join()


def unfed_s(told: list[tuple[float, str]]) -> float:
    """The longest time without food for the watchdog between READY and STOPPING, in seconds."""
    fed = [at for at, text in told if text in ("READY=1", "WATCHDOG=1", "STOPPING=1")]
    return max(later - earlier for earlier, later in pairwise(fed))


async def until(done: Callable[[], bool], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < deadline
        await anyio.sleep(0.02)


async def wait_for_the_end(records: list[Record]) -> None:
    await anyio.sleep(20)
    raise AssertionError("the service went on")


def terminate_at(frame: int) -> Act:
    async def act(records: list[Record]) -> None:
        await until(lambda: any(record.source_seq >= frame for record in features_of(records)))
        os.kill(os.getpid(), signal.SIGTERM)

    return act


def ends_of(records: list[Record]) -> list[EndRecord]:
    return [record for record in records if isinstance(record, EndRecord)]


def assert_only_ends_after_the_fault(records: list[Record]) -> None:
    assert len(features_of(records)) <= AT
    assert {end.camera for end in ends_of(records)} == {"a", "door"}
    for end in ends_of(records):
        assert end.reason.startswith("the device failed: ")
        assert end.captured_total == end.published_total + end.dropped_total + end.failed_total
    assert isinstance(records[-1], EndRecord)
    assert SECRET not in repr(records)


def test_a_step_that_hangs_ends_the_process_with_70_and_the_log_says_where(tmp_path: Path) -> None:
    """70 is restarted by systemd, as 78 would not be; the thread that hangs does not hold the process up."""
    config = write_config(tmp_path, camera("a", SOURCE) + UNREACHABLE, model="step_timeout_s = 0.5")
    with subscriber(tmp_path) as records_in, running(config, program=(str(FAULTY), "hang")) as process:
        records = receive_until(records_in, lambda record: isinstance(record, FeaturesRecord))
        began = time.monotonic()
        while len(ends_of(records)) < 2:
            records += receive_until(records_in, is_end)
        assert process.process.wait(10) == ExitCode.FAULT
        assert time.monotonic() - began < 5
    assert_only_ends_after_the_fault(records)
    last = log_of(process)[-1]
    assert (last["level"], "step_timeout_s = 0.5" in str(last["event"])) == ("critical", True)
    (hung,) = (line for line in log_of(process) if line["event"] == "the model hangs")
    stack = hung["stack"]
    assert isinstance(stack, list)
    assert stack[-1].endswith("_fail")
    assert any("model_runner.py" in call for call in stack)
    assert SECRET not in process.log.read_text()


def test_a_broken_device_ends_the_service_and_only_ends_are_published_after_it(tmp_path: Path) -> None:
    cameras = camera("a", SOURCE) + UNREACHABLE
    stub = Service(tmp_path, lambda config: FaultyEngine(config, ILLEGAL_ACCESS), cameras=cameras)
    with capture_logs() as log, pytest.raises(DeviceError, match="cpu failed: CUDA error: an illegal memory access"):
        stub.run(wait_for_the_end)
    assert_only_ends_after_the_fault(stub.records)
    assert SECRET not in repr(log)


def test_out_of_memory_costs_a_frame_and_the_memory_and_the_stream_goes_on(tmp_path: Path) -> None:
    stub = Service(tmp_path, lambda config: FaultyEngine(config, out_of_memory()))
    assert stub.run(terminate_at(AT + 3)) == ExitCode.OK
    records = features_of(stub.records)
    (first,) = (record for record in records if record.epoch == 1 and "reset" in record.flags)
    assert {record.epoch for record in records} == {0, 1}
    assert [record.seq for record in records] == list(range(len(records)))
    (end,) = ends_of(stub.records)
    assert end.failed_total == 1
    assert first.failed_total == 1


def test_a_device_that_stays_out_of_memory_is_given_up(tmp_path: Path) -> None:
    stub = Service(tmp_path, lambda config: FaultyEngine(config, out_of_memory(), times=1000))
    with pytest.raises(DeviceError, match=rf"cpu is given up: {MOST_IN_A_ROW} runs in a row failed, OutOfMemoryError"):
        stub.run(wait_for_the_end)
    (end,) = ends_of(stub.records)
    assert end.captured_total == end.published_total + end.dropped_total + end.failed_total
    assert end.failed_total >= MOST_IN_A_ROW


def test_one_frame_with_nan_is_flagged_and_those_after_it_are_clean(tmp_path: Path) -> None:
    class Spoilt(FaultyEngine):
        def __init__(self, config: ModelConfig) -> None:
            super().__init__(config, 0.0)
            self.model_runner.model.get_submodule("patch_embed").register_forward_hook(self._spoil)

        def _spoil(self, module: object, arguments: object, output: torch.Tensor) -> torch.Tensor:
            return output * float("nan") if self._steps == AT else output

    stub = Service(tmp_path, Spoilt)
    assert stub.run(terminate_at(AT + 4)) == ExitCode.OK
    flagged = [record for record in features_of(stub.records) if "nan" in record.flags]
    after = [record for record in features_of(stub.records) if record.seq > flagged[-1].seq]
    assert len(flagged) == 1
    assert after[0].epoch == flagged[0].epoch + 1
    assert all(np.isfinite(record["layer1/patch"]).all() for record in after)
    assert [record for record in stub.records if isinstance(record, StatusRecord)][-1].nan_total == 1


def test_ready_comes_after_a_slow_first_call_and_every_frame_is_of_later(tmp_path: Path) -> None:
    """And systemd is asked for time as long as it takes."""
    made_ns: list[int] = []

    def slow(config: ModelConfig) -> Engine:
        time.sleep(1.0)
        made_ns.append(time.monotonic_ns())
        return FaultyEngine(config, 0.0)

    stub = Service(tmp_path, slow)
    assert stub.run(terminate_at(3)) == ExitCode.OK
    ready = [at for at, text in stub.told if text == "READY=1"]
    assert ready[0] * 1e9 >= made_ns[0]
    asked = [at for at, text in stub.told if text.startswith("EXTEND_TIMEOUT_USEC=")]
    assert asked
    assert asked[0] < ready[0] - 0.9
    assert all(record.capture_monotonic_ns > made_ns[0] for record in features_of(stub.records))


def test_a_device_that_is_busy_is_tried_again_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "PAUSE_S", 0.1)
    tries: list[int] = []

    def busy(config: ModelConfig) -> Engine:
        tries.append(1)
        if len(tries) == load.TRIES:
            raise DeviceError("cuda:0 failed: gone")
        raise DeviceError("cuda:0 failed: busy")

    stub = Service(tmp_path, busy)
    with capture_logs() as log, pytest.raises(DeviceError, match="gone"):
        stub.run(wait_for_the_end)
    assert [line["problem"] for line in log if "trying again" in line["event"]] == ["cuda:0 failed: busy"] * 2
    assert not any(text == "READY=1" for _, text in stub.told)


@pytest.mark.parametrize("error", [BUSY, out_of_memory()], ids=["busy", "out of memory"])
def test_what_fails_while_loading_is_told_in_the_services_own_words(
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
    """Its parts, each with its own limit, add up to less."""
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
    stub = Service(tmp_path, lambda config: Hung(config, 0.0))
    try:
        assert stub.run(act) == ExitCode.OK
        assert time.monotonic() - began[0] < 2.6
    finally:
        release.set()
    statuses = [record for record in stub.records if isinstance(record, StatusRecord)]
    assert max(status.service.loop_lag_ms for status in statuses) < 500  # the event loop waits for nothing
    (end,) = ends_of(stub.records)
    assert end.captured_total == end.published_total + end.dropped_total + end.failed_total


@pytest.mark.parametrize("when", ["loading", "draining"])
def test_a_second_signal_ends_it_at_once_whatever_it_is_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
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
    monkeypatch.setattr(service.os, "_exit", exit_now)
    stub = Service(tmp_path, slow)
    try:
        with pytest.raises(Ended, match=str(128 + signal.SIGTERM)):
            stub.run(act)
    finally:
        release.set()


def test_a_storm_of_reloads_is_a_few_and_each_is_counted(tmp_path: Path) -> None:
    stub = Service(tmp_path, lambda config: FaultyEngine(config, 0.0))

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
    told = [text.partition("\n")[0] for _, text in stub.told]
    assert told.count("RELOADING=1") <= 4
    assert told.count("READY=1") == 1 + told.count("RELOADING=1")
    assert unfed_s(stub.told) < WATCHDOG_S


def test_a_camera_that_accepts_and_never_answers_starves_no_watchdog_and_delays_no_stop(tmp_path: Path) -> None:
    async def act(records: list[Record]) -> None:
        await until(lambda: any(isinstance(record, StatusRecord) for record in records))
        await anyio.sleep(1.5 * WATCHDOG_S)
        began.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    began: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as blackhole:
        dead = camera("a", f"http://127.0.0.1:{blackhole.getsockname()[1]}/x")
        stub = Service(tmp_path, lambda config: FaultyEngine(config, 0.0), cameras=dead)
        assert stub.run(act) == ExitCode.OK
    assert time.monotonic() - began[0] < 3.0
    assert unfed_s(stub.told) < WATCHDOG_S
    assert sum(text == "WATCHDOG=1" for _, text in stub.told) >= 3
