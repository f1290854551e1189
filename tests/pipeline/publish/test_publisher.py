"""The publisher over real sockets: whatever its peers do, records arrive whole, in order and within the budget."""

import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import zmq
import zmq.auth

from retinad.client import EndRecord, FeaturesRecord, HelloRecord, Kind, Subscriber
from retinad.client.wire import EndHeader, ServiceHeader, StatusHeader, decode
from retinad.pipeline.errors import PublishError

from ...deadlines import scaled
from .rig import make_features, make_publisher, poll_until, publish, raw_subscriber, receive_features


def test_a_record_arrives_unchanged() -> None:
    with make_publisher() as publisher, Subscriber(publisher.endpoints[0], timeout_s=scaled(5)) as subscriber:
        poll_until(publisher, "subscriptions_total", 2)
        data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        data.flags.writeable = False
        publish(publisher, "cam1", 5, data)
        record = receive_features(subscriber)
    assert (record["layer3/patch"] == data).all()
    assert (record.camera, record.seq, record.source_seq) == ("cam1", 5, 5)
    assert (record.dropped_total, record.failed_total) == (1, 2)
    assert (record.instance, record.flags) == (publisher.instance, ("reset", "warmup"))
    assert (record.latency_us.queue, record.latency_us.preprocess, record.latency_us.model) == (10, 20, 30)
    assert 0 <= record.latency_us.publish < 1_000_000
    assert (record.model.name, record.model.weights) == ("tiny", "random:0")


def test_bfloat16_arrives_exactly_as_float32() -> None:
    with make_publisher() as publisher, Subscriber(publisher.endpoints[0], timeout_s=scaled(5)) as subscriber:
        poll_until(publisher, "subscriptions_total", 2)
        features = make_features("cam1", 0, np.array([0x3F80, 0xC020], np.uint16))
        publisher.publish_features(features, seq=0, dropped_total=0, failed_total=0, model_done_ns=0)
        record = receive_features(subscriber)
    assert record["layer3/patch"].tolist() == [1.0, -2.5]


def test_big_endian_or_strided_tensors_are_refused() -> None:
    with make_publisher() as publisher:
        with pytest.raises(ValueError, match=">f4"):
            publish(publisher, "cam1", 0, np.zeros(4, ">f4"))
        with pytest.raises(ValueError, match="not C-contiguous"):
            publish(publisher, "cam1", 0, np.zeros((4, 4), np.float16)[:, ::2])


def test_messages_are_plain_multipart_that_any_reader_can_split() -> None:
    with make_publisher() as publisher, raw_subscriber(publisher.endpoints[0], b"") as reader:
        poll_until(publisher, "subscriptions_total", 1)
        publisher.publish_hello()
        publish(publisher, "cam1", 0)
        counts = publisher.statistics()
        service = ServiceHeader(peers=counts.peers, sent_messages=counts.sent_messages, loop_lag_ms=1.5)
        publisher.publish_status(StatusHeader(camera="cam1", state="running", service=service))
        publisher.publish_end(EndHeader(camera="cam1", reason="finished"))
        headers = {}
        while b"end/cam1/" not in headers:
            assert reader.poll(5000)
            topic, header, *tensors = reader.recv_multipart()
            headers[topic] = decode([topic, header, *tensors]).header
        sent = publisher.statistics().sent_messages
    assert list(headers) == [b"hello/", b"features/cam1/", b"status/cam1/", b"end/cam1/"]
    assert {header.instance for header in headers.values()} == {publisher.instance}
    assert all(abs(time.time_ns() - header.publish_unix_ns) < 60e9 for header in headers.values())
    status = headers[b"status/cam1/"]
    assert isinstance(status, StatusHeader)
    assert (status.service.peers, status.service.loop_lag_ms) == (1, 1.5)
    assert status.service.sent_messages == sent - 2


def test_a_subscription_to_cam1_does_not_match_cam10() -> None:
    with (
        make_publisher() as publisher,
        Subscriber(publisher.endpoints[0], cameras=("cam1",), timeout_s=scaled(5)) as subscriber,
    ):
        poll_until(publisher, "subscriptions_total", 2)
        for seq in range(3):
            publish(publisher, "cam10", seq)
            publish(publisher, "cam1", seq)
        records = [subscriber.receive() for _ in range(3)]
    assert [(record.camera, record.seq) for record in records if isinstance(record, FeaturesRecord)] == [
        ("cam1", 0),
        ("cam1", 1),
        ("cam1", 2),
    ]


def test_a_late_subscriber_gets_hello_at_once_and_not_only_at_the_heartbeat() -> None:
    with make_publisher(heartbeat_s=3600.0) as publisher:
        publisher.poll()
        for _ in range(3):
            time.sleep(0.11)
            with Subscriber(publisher.endpoints[0], kinds=(Kind.HELLO,)) as subscriber:
                began = time.monotonic()
                hellos = publisher.statistics().hello_messages
                poll_until(publisher, "hello_messages", hellos + 1)
                hello = subscriber.receive(scaled(5))
                assert time.monotonic() - began < scaled(1)
            assert isinstance(hello, HelloRecord)
            assert (hello.version, hello.endpoints, hello.heartbeat_s) == ("1.2.3", publisher.endpoints, 3600.0)


def test_hello_is_repeated_every_heartbeat() -> None:
    with make_publisher(heartbeat_s=0.05) as publisher:
        began = time.monotonic()
        poll_until(publisher, "hello_messages", 5)
        assert time.monotonic() - began >= 0.2


def test_a_storm_of_subscriptions_is_answered_with_few_hellos() -> None:
    with make_publisher(heartbeat_s=3600.0) as publisher, raw_subscriber(publisher.endpoints[0]) as stormy:
        poll_until(publisher, "peers", 1)
        began = time.monotonic()
        for number in range(500):
            stormy.setsockopt(zmq.SUBSCRIBE, b"")
            stormy.setsockopt(zmq.SUBSCRIBE, b"topic %d" % number)
        poll_until(publisher, "subscriptions_total", 501)
        assert publisher.statistics().hello_messages <= 2 + (time.monotonic() - began) / 0.1


def test_a_subscriber_that_never_reads_costs_the_budget_and_no_more() -> None:
    """With libzmq's default limit of 1000 messages, one such subscriber cost 989 MB (measured)."""
    publisher = make_publisher(largest_message_bytes=200_000, buffer_mb=1)
    with publisher, raw_subscriber(publisher.endpoints[0], b"", hwm=1):
        assert publisher.statistics().send_hwm == 5
        poll_until(publisher, "subscriptions_total", 1)
        payloads: list[weakref.ref[np.ndarray]] = []
        for seq in range(400):
            data = np.zeros(100_000, np.float16)
            payloads.append(weakref.ref(data))
            publish(publisher, "cam1", seq, data)
            del data
        time.sleep(0.1)
        # Beyond the queue: the message being sent, and one that pyzmq has not released. The kernel holds the rest.
        assert sum(payload() is not None for payload in payloads) <= 5 + 2


def test_the_queue_holds_a_burst_of_all_cameras_whatever_the_budget() -> None:
    publisher = make_publisher(largest_message_bytes=4_000_000, buffer_mb=1, burst_messages=16)
    with publisher, Subscriber(publisher.endpoints[0]) as subscriber:
        assert publisher.statistics().send_hwm == 31
        poll_until(publisher, "subscriptions_total", 2)
        for step in range(5):
            for camera in range(16):
                publish(publisher, f"cam{camera}", step, np.zeros(100_000, np.float16))
            for _ in range(16):
                record = receive_features(subscriber)
                assert (record.seq, record.gaps) == (step, ())


def test_a_short_queue_drops_nothing_for_a_subscriber_that_keeps_up() -> None:
    """libzmq checks what its peers have read only once per millisecond, and considers an empty queue full."""
    with make_publisher(largest_message_bytes=4_000_000, buffer_mb=1) as publisher:
        assert publisher.statistics().send_hwm == 2
        with Subscriber(publisher.endpoints[0]) as subscriber:
            poll_until(publisher, "subscriptions_total", 2)
            for seq in range(500):
                publish(publisher, "cam1", seq)
                record = receive_features(subscriber)
                assert (record.seq, record.gaps) == (seq, ())


def test_closing_takes_half_a_second_at_most_even_with_a_subscriber_that_never_reads() -> None:
    """pyzmq's default would wait for it indefinitely."""
    publisher = make_publisher(largest_message_bytes=1_000_000)
    with publisher, raw_subscriber(publisher.endpoints[0], b"", hwm=1):
        poll_until(publisher, "subscriptions_total", 1)
        for seq in range(60):
            publish(publisher, "cam1", seq, np.zeros(500_000, np.float16))
        began = time.monotonic()
        publisher.close()
        publisher.close()
        assert time.monotonic() - began < scaled(1)


def test_the_last_message_arrives_after_closing() -> None:
    publisher = make_publisher()
    with publisher, Subscriber(publisher.endpoints[0], kinds=(Kind.END,)) as subscriber:
        poll_until(publisher, "subscriptions_total", 2)
        publisher.publish_end(EndHeader(camera="cam1", reason="stopped"))
        publisher.close()
        end = subscriber.receive(scaled(5))
        assert isinstance(end, EndRecord)
        assert end.camera == "cam1"


def test_large_tensors_go_out_uncopied_and_arrive_unchanged() -> None:
    with make_publisher(largest_message_bytes=1 << 20) as publisher, Subscriber(publisher.endpoints[0]) as subscriber:
        poll_until(publisher, "subscriptions_total", 2)
        arrays = [np.full((256, 1024), seq, np.float16) for seq in range(20)]
        held = weakref.ref(arrays[0])
        for seq, array in enumerate(arrays):
            publish(publisher, "cam1", seq, array)
        del arrays, array  # only libzmq refers to them
        for seq in range(20):
            record = receive_features(subscriber)
            assert record.seq == seq
            assert (record["layer3/patch"] == seq).all()
        until = time.monotonic() + 5
        while held() is not None and time.monotonic() < until:
            time.sleep(0.01)
        assert held() is None  # and releases them after the send


def test_a_publisher_killed_within_a_message_does_not_harm_the_subscriber(tmp_path: Path) -> None:
    """A subscriber gets whole messages or none."""
    code = (
        "import sys, zmq; s = zmq.Context().socket(zmq.XPUB); s.bind(sys.argv[1]); s.recv()\n"
        "for _ in range(2): s.send_multipart([b'features/cam1/', b'', bytes(50_000_000)])\n"
        "print(flush=True); s.recv(); s.recv()"
    )
    endpoint = f"ipc://{tmp_path}/s"
    with (
        subprocess.Popen([sys.executable, "-c", code, endpoint], stdout=subprocess.PIPE) as victim,
        raw_subscriber(endpoint, b"", hwm=1) as reader,
    ):
        assert victim.stdout is not None
        victim.stdout.readline()
        victim.kill()
        victim.wait()
        while reader.poll(300):
            assert len(reader.recv_multipart()) == 3


def test_use_from_another_thread_raises_and_does_not_abort() -> None:
    with make_publisher() as publisher:
        caught: list[BaseException] = []

        def misuse() -> None:
            for call in (publisher.poll, publisher.publish_hello):
                try:
                    call()
                except RuntimeError as exc:
                    caught.append(exc)

        thread = threading.Thread(target=misuse)
        thread.start()
        thread.join()
        assert len(caught) == 2


def test_a_closed_publisher_raises() -> None:
    publisher = make_publisher()
    for call in (publisher.poll, publisher.publish_hello, publisher.statistics):
        with pytest.raises(PublishError, match="closed"):
            call()
    assert publisher.endpoints == ()


def test_subscribers_that_come_and_go_leave_nothing_behind() -> None:
    with make_publisher() as publisher:
        endpoint = publisher.endpoints[0]
        for seq in range(60):
            with raw_subscriber(endpoint, b"features/"):
                poll_until(publisher, "subscriptions_total", seq + 1)
                publish(publisher, "cam1", seq)
        # Connections are reported by events, which arrive a little later than the subscriptions.
        poll_until(publisher, "connections_total", 60)
        until = time.monotonic() + 5
        while publisher.statistics().peers and time.monotonic() < until:
            publisher.poll()
            time.sleep(0.01)
        statistics = publisher.statistics()
    assert (statistics.peers, statistics.connections_total, statistics.handshake_failures) == (0, 60, 0)


def test_subscribers_that_come_and_go_cost_a_steady_one_nothing_and_the_counters_add_up() -> None:
    with make_publisher() as publisher, Subscriber(publisher.endpoints[0], timeout_s=scaled(5)) as steady:
        poll_until(publisher, "subscriptions_total", 2)
        first = publisher.statistics()
        for seq in range(5000):
            if seq % 100 == 0:
                with raw_subscriber(publisher.endpoints[0], b"features/"):
                    poll_until(publisher, "subscriptions_total", 3 + seq // 100)
            publish(publisher, "cam1", seq)
            record = receive_features(steady)
            assert (record.seq, record.gaps) == (seq, ())
        poll_until(publisher, "disconnected_total", 50)
        last = publisher.statistics()
    assert (last.peers, last.connections_total, last.disconnected_total) == (1, 51, 50)
    hellos = last.hello_messages - first.hello_messages
    assert last.sent_messages - first.sent_messages == 5000 + hellos


def test_polling_and_publishing_without_peers_is_cheap() -> None:
    """The event loop calls both continuously."""
    with make_publisher(heartbeat_s=3600.0) as publisher:
        began = time.monotonic()
        for seq in range(1000):
            publisher.poll()
            publish(publisher, "cam1", seq)
        assert time.monotonic() - began < scaled(2)


def test_a_subscriber_to_thousands_of_cameras_subscribes_to_all_of_them() -> None:
    """A SUB socket's own limit on what waits to be sent is 1000 by default, and it drops the rest silently."""
    names = [f"cam{number}" for number in range(3000)]
    with make_publisher() as publisher, Subscriber(publisher.endpoints[0], cameras=names):
        poll_until(publisher, "subscriptions_total", 3001)
