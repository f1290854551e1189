"""Subscribers over real sockets: complete delivery, gap reports, and errors that say what to check."""

import asyncio
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq.auth

import retinad.client
from retinad.client import (
    AsyncSubscriber,
    CurveKeys,
    EndRecord,
    FeaturesRecord,
    Gap,
    GapKind,
    HelloRecord,
    Kind,
    Record,
    StatusRecord,
    Subscriber,
    WireError,
)
from retinad.client.wire import CameraHeader, EndHeader, HelloHeader, StatusHeader

from .fake_service import FakeService

Opener = Callable[..., AbstractContextManager[FakeService]]

HELLO = HelloHeader(version="1", cameras=(CameraHeader(name="cam1"), CameraHeader(name="cam10")))


def receive_features(subscriber: Subscriber) -> FeaturesRecord:
    record = subscriber.receive(5.0)
    assert isinstance(record, FeaturesRecord)
    return record


def test_public_names() -> None:
    assert sorted(retinad.client.__all__) == [
        "AsyncSubscriber",
        "CurveKeys",
        "EndRecord",
        "FeaturesRecord",
        "Gap",
        "GapKind",
        "HelloRecord",
        "Kind",
        "Locator",
        "QueryError",
        "Record",
        "SCHEMA",
        "StatusRecord",
        "Subscriber",
        "Tensors",
        "WireError",
    ]
    assert all(hasattr(retinad.client, name) for name in retinad.client.__all__)


def test_a_subscriber_needs_the_base_install_only() -> None:
    """Reading records must not require torch."""
    heavy = ("torch", "cv2", "anyio", "pydantic", "structlog")
    code = f"import sys, retinad.client; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout == b"[]\n"


def test_header_fields_are_attributes_and_tensors_are_arrays(service: FakeService) -> None:
    with Subscriber(service.endpoint) as subscriber:
        service.wait_for_subscriptions(2)
        service.features("cam1", 7)
        record = receive_features(subscriber)
    # after closing: a record outlives its connection
    assert (record.camera, record.seq, record.source_size, record.model.weights) == ("cam1", 7, (640, 480), "random:0")
    assert list(record.tensors) == ["layer3/patch", "file"]
    assert record["layer3/patch"].dtype == np.float16
    assert (record["layer3/patch"] == 7).all()
    assert record["file"].dtype == np.float32
    assert record.tensors.layout("file").dtype == "bf16"
    assert record["layer3/patch"] is record.tensors["layer3/patch"]
    with pytest.raises(KeyError, match="the record has layer3/patch, file"):
        record["layer4/patch"]
    assert "layer3/patch <f2[2, 3]" in repr(record.tensors)


def test_cam1_does_not_get_cam10(service: FakeService) -> None:
    with Subscriber(service.endpoint, cameras=("cam1",)) as subscriber:
        assert sorted(service.wait_for_subscriptions(2)) == [b"features/cam1/", b"hello/"]
        for seq in range(5):
            service.features("cam10", seq)
            service.features("cam1", seq)
        assert [receive_features(subscriber).seq for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(TimeoutError):
            subscriber.receive(0.05)


def test_every_kind_is_a_record_of_its_own_type(service: FakeService) -> None:
    with Subscriber(service.endpoint, kinds=tuple(Kind), timeout_s=5) as subscriber:
        service.wait_for_subscriptions(4)
        service.say(HELLO)
        service.say(StatusHeader(camera="cam1", state="running", fps=9.5))
        service.features("cam1", 0)
        service.say(EndHeader(camera="cam1", instance="a", reason="finished", stream_epoch=0, next_seq=3))
        hello, status, features, end = (subscriber.receive() for _ in range(4))
    assert isinstance(hello, HelloRecord)
    assert hello.cameras == HELLO.cameras
    assert isinstance(status, StatusRecord)
    assert (status.state, status.fps, status.gaps) == ("running", 9.5, ())
    assert isinstance(features, FeaturesRecord)
    assert isinstance(end, EndRecord)
    assert end.gaps == (Gap(GapKind.WIRE_LOSS, "cam1", 2),)


def test_iterating_raises_when_nothing_comes_in_time(service: FakeService) -> None:
    with Subscriber(service.endpoint, timeout_s=0.2) as subscriber:
        service.wait_for_subscriptions(2)
        service.features("cam1", 0)
        service.features("cam1", 1)
        seen: list[Record] = []
        with pytest.raises(TimeoutError):
            seen.extend(record for record in subscriber)
        assert len(seen) == 2


def test_a_dead_endpoint_times_out_with_a_reason() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{reserved.getsockname()[1]}"
        with Subscriber(endpoint) as subscriber:
            began = time.monotonic()
            with pytest.raises(TimeoutError, match=f"{endpoint} in 0.2 s: not connected. Check that the service runs"):
                subscriber.receive(0.2)
            assert time.monotonic() - began < 1


def test_a_port_that_accepts_and_never_answers_is_not_connected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with Subscriber(endpoint, timeout_s=0.3) as subscriber, pytest.raises(TimeoutError, match="not connected"):
            subscriber.receive()


def test_a_misspelt_camera_is_named_with_those_that_exist(service: FakeService) -> None:
    with Subscriber(service.endpoint, cameras=("cma1", "cam10")) as subscriber:
        service.wait_for_subscriptions(3)
        service.say(HELLO)
        with pytest.raises(TimeoutError, match=r"connected, but .* The service has no camera cma1; it has cam1, cam10"):
            subscriber.receive(0.3)


def test_a_service_that_sends_no_hello_is_reported(service: FakeService) -> None:
    with Subscriber(service.endpoint) as subscriber:
        service.wait_for_subscriptions(2)
        with pytest.raises(TimeoutError, match=r"Check that this is a retinad service.* still be loading"):
            subscriber.receive(0.1)


def test_latest_only_returns_the_newest_of_each_camera_with_all_gaps(service: FakeService) -> None:
    with Subscriber(service.endpoint, latest_only=True) as subscriber:
        service.wait_for_subscriptions(2)
        for seq in (0, 5, 9):
            service.features("cam1", seq)
            service.features("cam2", seq, source_seq=2 * seq)
        time.sleep(0.3)
        first, second = receive_features(subscriber), receive_features(subscriber)
        assert [(record.camera, record.seq) for record in (first, second)] == [("cam1", 9), ("cam2", 9)]
        assert first.gaps == (Gap(GapKind.WIRE_LOSS, "cam1", 7),)
        assert set(second.gaps) == {Gap(GapKind.SOURCE_DROP, "cam2", 9), Gap(GapKind.WIRE_LOSS, "cam2", 7)}
        with pytest.raises(TimeoutError):
            subscriber.receive(0.05)


def test_latest_only_drains_past_its_small_queue(service: FakeService) -> None:
    """The network's buffers behind a full queue hold newer records; the newest of those is returned."""
    with Subscriber(service.endpoint, latest_only=True) as subscriber:
        service.wait_for_subscriptions(2)
        for seq in range(300):
            service.features("cam1", seq)
        time.sleep(0.2)
        received = [receive_features(subscriber).seq]
        while received[-1] < 299:
            received.append(receive_features(subscriber).seq)
        assert len(received) <= 3  # one, unless the machine is so busy that libzmq's own thread falls behind


def test_a_bad_message_raises_and_the_next_one_is_read(service: FakeService) -> None:
    with Subscriber(service.endpoint) as subscriber:
        service.wait_for_subscriptions(2)
        service.features("cam1", 0)
        service.send(b"features/cam1/", b"\xc1garbage")
        service.send(b"features/cam1/", msgspec.msgpack.encode({"schema": 2}))
        service.features("cam1", 1)
        assert receive_features(subscriber).seq == 0
        for why in ("cannot be read", "update retinad"):
            with pytest.raises(WireError, match=why):
                subscriber.receive(5)
        record = receive_features(subscriber)
        assert (record.seq, record.gaps) == (1, ())


def test_a_restart_of_the_service_is_reported(tmp_path: Path, open_service: Opener) -> None:
    endpoint = f"ipc://{tmp_path}/s"
    with Subscriber(endpoint) as subscriber:
        with open_service(endpoint, "first") as service:
            service.wait_for_subscriptions(2)
            service.features("cam1", 0)
            assert receive_features(subscriber).gaps == ()
        with open_service(endpoint, "second") as service, ThreadPoolExecutor() as pool:
            waiting = pool.submit(receive_features, subscriber)  # libzmq resubscribes only while the subscriber polls
            service.wait_for_subscriptions(2)
            service.features("cam1", 4)
            record = waiting.result()
    assert record.gaps == (Gap(GapKind.RESTART, "cam1", 1), Gap(GapKind.WIRE_LOSS, "cam1", 4))


SLOW = """
import sys, time
from retinad.client import Subscriber
with Subscriber(sys.argv[1], timeout_s=5) as subscriber:
    subscriber.receive()
    print(flush=True)
    time.sleep(3)
    for _ in range(8):
        subscriber.receive()
"""


def test_a_slow_subscriber_outlives_its_service(tmp_path: Path, open_service: Opener) -> None:
    """With heartbeats enabled, libzmq 4.3.5 aborts a subscriber whose queue is full when the service dies."""
    endpoint = f"ipc://{tmp_path}/s"
    with subprocess.Popen([sys.executable, "-c", SLOW, endpoint], stdout=subprocess.PIPE) as slow:
        with open_service(endpoint) as service:
            service.wait_for_subscriptions(2)
            for seq in range(2000):
                service.features("cam1", seq)
            assert slow.stdout is not None
            slow.stdout.readline()
            time.sleep(0.2)
        assert slow.wait(20) == 0


def test_a_half_open_link_is_reconnected(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pulled cable sends no FIN: missing `hello` messages are the only sign."""
    monkeypatch.setattr("retinad.client.connection.SILENCE_S", 0.3)
    monkeypatch.setattr("retinad.client.connection.RETRY_S", 0.1)
    with Subscriber(service.endpoint) as subscriber, ThreadPoolExecutor() as pool:
        service.wait_for_subscriptions(2)
        waiting = pool.submit(receive_features, subscriber)
        service.wait_for_subscriptions(2)
        service.features("cam1", 0)
        assert waiting.result().seq == 0


def test_an_invalid_subscription_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot connect to 'nonsense'"):
        Subscriber("nonsense")
    with pytest.raises(ValueError, match="1-64 characters"):
        Subscriber("tcp://127.0.0.1:1", cameras=("a/b",))
    with pytest.raises(ValueError, match=r"cannot read the CURVE key in .*none\.key"):
        Subscriber("tcp://127.0.0.1:1", curve=CurveKeys(tmp_path / "none.key", tmp_path / "none.key"))


@pytest.mark.parametrize("key", ["abcd", "~" * 40, "0" * 45, None])
@pytest.mark.parametrize("wrong", ["public", "secret", "server"])
def test_an_invalid_key_file_is_named_without_its_content(tmp_path: Path, wrong: str, key: str | None) -> None:
    server, _ = map(Path, zmq.auth.create_certificates(tmp_path, "server"))
    _, client = map(Path, zmq.auth.create_certificates(tmp_path, "client"))
    file = server if wrong == "server" else client
    name = "secret-key" if wrong == "secret" else "public-key"
    text, changes = re.subn(rf"{name} = .*", name if key is None else f'{name} = "{key}"', file.read_text())
    file.write_text(text)
    assert changes == 1
    with pytest.raises(ValueError, match=re.escape(str(file))) as caught:
        Subscriber("tcp://127.0.0.1:1", curve=CurveKeys(client, server))
    assert key is None or key not in str(caught.value)


def test_closing_twice_is_allowed_and_quick() -> None:
    subscriber = Subscriber("tcp://127.0.0.1:1")
    began = time.monotonic()
    subscriber.close()
    subscriber.close()
    assert time.monotonic() - began < 1


def test_a_saved_record_reads_back_with_its_header(service: FakeService, tmp_path: Path) -> None:
    with Subscriber(service.endpoint) as subscriber:
        service.wait_for_subscriptions(2)
        service.features("cam1", 3)
        record = receive_features(subscriber)
    path = tmp_path / "record.npz"
    record.save_npz(path)
    assert [file.name for file in tmp_path.iterdir()] == ["record.npz"]
    with np.load(path, allow_pickle=False) as saved:
        assert sorted(saved) == ["file", "header.json", "layer3/patch"]
        assert (saved["layer3/patch"] == record["layer3/patch"]).all()
        header = msgspec.json.decode(str(saved["header.json"]))
    assert (header["camera"], header["seq"], header["tensors"][0]["name"]) == ("cam1", 3, "layer3/patch")


def test_a_failed_save_leaves_no_file(service: FakeService, tmp_path: Path) -> None:
    with Subscriber(service.endpoint) as subscriber:
        service.wait_for_subscriptions(2)
        service.features("cam1", 3)
        record = receive_features(subscriber)
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        record.save_npz(tmp_path / "taken")
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


def send_burst(service: FakeService, count: int) -> None:
    for seq in range(count):
        service.features("cam1", seq)


@pytest.mark.anyio
async def test_a_burst_of_10_000_arrives_whole_on_the_event_loop(service: FakeService) -> None:
    """An edge-triggered descriptor must not leave a waiter asleep in front of a full queue."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async with AsyncSubscriber(service.endpoint, timeout_s=10) as subscriber:
        await asyncio.to_thread(service.wait_for_subscriptions, 2)
        ticker = asyncio.create_task(tick())
        sender = asyncio.create_task(asyncio.to_thread(send_burst, service, 10_000))
        for seq in range(10_000):
            record = await subscriber.receive()
            assert isinstance(record, FeaturesRecord)
            assert (record.seq, record.gaps) == (seq, ())
        await sender
        ticker.cancel()
    assert ticks > 5_000  # other tasks had their turn


@pytest.mark.anyio
async def test_slow_messages_wake_the_waiter_each_time(service: FakeService) -> None:
    async with AsyncSubscriber(service.endpoint, cameras=("cam1",)) as subscriber:
        await asyncio.to_thread(service.wait_for_subscriptions, 2)
        for seq in range(20):
            asyncio.get_running_loop().call_later(0.01, service.features, "cam1", seq)
            record = await subscriber.receive(5)
            assert isinstance(record, FeaturesRecord)
            assert record.seq == seq


@pytest.mark.anyio
async def test_a_cancelled_waiter_loses_no_record(service: FakeService) -> None:
    async with AsyncSubscriber(service.endpoint) as subscriber:
        await asyncio.to_thread(service.wait_for_subscriptions, 2)
        seen: list[int] = []

        async def take() -> None:
            async for record in subscriber:
                assert isinstance(record, FeaturesRecord)
                seen.append(record.seq)

        for seq in range(50):
            task = asyncio.create_task(take())
            service.features("cam1", seq)
            await asyncio.sleep(0.002 * (seq % 3))
            task.cancel()
            await asyncio.wait([task])
        while len(seen) < 50:
            record = await subscriber.receive(5)
            assert isinstance(record, FeaturesRecord)
            seen.append(record.seq)
    assert seen == list(range(50))


@pytest.mark.anyio
async def test_the_async_subscriber_times_out_with_a_reason() -> None:
    async with AsyncSubscriber("tcp://127.0.0.1:1", timeout_s=0.1) as subscriber:
        with pytest.raises(TimeoutError, match="not connected"):
            await anext(subscriber)


@pytest.mark.anyio
async def test_two_waiting_tasks_are_an_error_not_a_hang() -> None:
    async with AsyncSubscriber("tcp://127.0.0.1:1") as subscriber:
        first = asyncio.create_task(subscriber.receive())
        await asyncio.sleep(0.05)
        with pytest.raises(RuntimeError, match="another task"):
            await subscriber.receive()
        first.cancel()
        await asyncio.wait([first])
