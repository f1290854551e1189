"""What a peer sends is bounded, whatever it sends: it is disconnected, and the other subscribers lose nothing."""

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from retinad.client import Subscriber
from retinad.pipeline.publish import inbound as inbound_module
from retinad.pipeline.publish.inbound import SUBSCRIBERS, Inbound, excess
from retinad.pipeline.publish.publisher import Publisher

from ...client.zmtp import GREETING, MORE, frame, ready
from ...deadlines import scaled
from .rig import TCP, make_publisher, poll_until, publish, receive_features, resident_bytes


def endpoint_of(transport: str, folder: Path) -> str:
    return TCP if transport == "tcp" else f"ipc://{folder}/s"


def connect(endpoint: str) -> socket.socket:
    """A peer that has finished its handshake."""
    scheme, _, rest = endpoint.partition("://")
    if scheme == "ipc":
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(rest)
    else:
        host, _, port = rest.rpartition(":")
        peer = socket.create_connection((host, int(port)))
    peer.settimeout(scaled(5))
    peer.sendall(GREETING)
    heard = b""
    while b"NULL" not in heard:
        heard += peer.recv(4096)
    peer.sendall(ready(b"SUB"))
    while b"READY" not in heard:
        heard += peer.recv(4096)
    return peer


@contextmanager
def flood(publisher: Publisher, data: bytes) -> Iterator[threading.Event]:
    """A peer that sends the same bytes until it is cut off; the event is set then. It begins before the publisher has
    looked for new connections.
    """
    peer, over, stop = connect(publisher.endpoints[0]), threading.Event(), threading.Event()

    def send() -> None:
        with suppress(OSError):
            while not stop.is_set():
                peer.sendall(data)
        over.set()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield over
    finally:
        stop.set()
        thread.join(scaled(10))
        peer.close()


def serve_until(publisher: Publisher, subscriber: Subscriber, over: threading.Event) -> None:
    """Poll as the service does, and publish to a subscriber, which must lose nothing."""
    until, seq = time.monotonic() + scaled(10), 0
    while not over.is_set():
        assert time.monotonic() < until, "the peer is not disconnected"
        publish(publisher, "cam1", seq)
        publisher.poll()
        record = receive_features(subscriber)
        assert (record.seq, record.gaps) == (seq, ())
        seq += 1
        time.sleep(0.03)


SUBSCRIPTIONS = b"".join(frame(b"\x01" + f"features/{number:055}".encode()) for number in range(1000))


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
@pytest.mark.parametrize(
    "data",
    [frame(b"", MORE) * 30_000, frame(b"x" * 100, MORE) * 600, SUBSCRIPTIONS, frame(b"\x00x") * 20_000],
    ids=["a message that never ends", "its parts of 100 bytes", "subscriptions", "foreign messages"],
)
def test_a_peer_that_sends_without_end_is_cut_off_and_its_memory_is_bounded(
    transport: str, data: bytes, tmp_path: Path
) -> None:
    with (
        make_publisher(endpoint_of(transport, tmp_path)) as publisher,
        Subscriber(publisher.endpoints[0]) as subscriber,
    ):
        poll_until(publisher, "subscriptions_total", 2)
        before = resident_bytes()
        with flood(publisher, data) as over:
            serve_until(publisher, subscriber, over)
        poll_until(publisher, "disconnected_total", 1)
        assert resident_bytes() - before < 300 << 20
        reasons = {refusal.reason for refusal in publisher.take_refusals()}
        assert reasons == {"it sent too much and was disconnected"}


def test_a_subscriber_to_every_camera_by_name_is_not_cut_off() -> None:
    names = [f"camera-{number:050}" for number in range(900)]
    with make_publisher() as publisher, Subscriber(publisher.endpoints[0], cameras=names) as subscriber:
        poll_until(publisher, "subscriptions_total", 901, timeout_s=20)
        for _ in range(10):
            publisher.poll()
        publish(publisher, names[-1], 0)
        assert receive_features(subscriber).camera == names[-1]
        assert publisher.statistics().disconnected_total == 0


def test_what_comes_in_slowly_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that pings, or subscribes and unsubscribes now and then, stays for months."""
    now, total = [0.0], [0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(inbound_module, "_received_bytes", lambda descriptor: total[0])
    peer = Inbound(0)
    for _ in range(1000):
        now[0] += 10
        total[0] += 300
        peer.update()
        assert peer.level <= 300
    total[0] += SUBSCRIBERS.peer_bytes + 1
    peer.update()
    assert excess([peer]) == [peer]


def test_the_largest_senders_are_cut_when_all_together_have_sent_too_much() -> None:
    with socket.socket() as some:
        peers = [Inbound(some.fileno(), level=SUBSCRIBERS.peer_bytes * (0.5 + number / 100)) for number in range(16)]
        assert sum(peer.level for peer in peers) > SUBSCRIBERS.all_bytes
        over = excess(peers)
        assert over == peers[:-3:-1]
        assert excess(peers[:13]) == []


def test_a_descriptor_that_is_another_connections_by_now_is_left_alone() -> None:
    one, other = socket.socketpair()
    peer = Inbound(one.fileno())
    number = one.fileno()
    one.close()
    first, second = socket.socketpair()
    try:
        assert number in (first.fileno(), second.fileno())
        peer.cut()
        first.sendall(b"x")
        assert second.recv(1) == b"x"
    finally:
        for end in (other, first, second):
            end.close()


def test_connections_do_not_fill_the_table_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """libzmq would spin on a connection that it cannot accept. The earlier connections stay."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (20, 20))
    with make_publisher() as publisher, Subscriber(publisher.endpoints[0]) as subscriber:
        poll_until(publisher, "subscriptions_total", 2)
        peers = [connect(publisher.endpoints[0]) for _ in range(15)]
        poll_until(publisher, "disconnected_total", 6)
        for _ in range(20):
            publisher.poll()
            time.sleep(0.01)
        publish(publisher, "cam1", 0)
        assert receive_features(subscriber).camera == "cam1"
        assert publisher.statistics().peers == 10
        (refusal,) = publisher.take_refusals()
        assert refusal.reason == "10 peers are connected, as many as open files allow (ulimit -n)"
        for peer in peers:
            peer.close()
