"""The socket's limits: slow, hostile and dead peers are cut off or ignored, and the others lose nothing."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import zmq

from retinad.client import Subscriber
from retinad.pipeline.publish import socket as publish_socket

from ...client.zmtp import GREETING, frame, ready
from ...deadlines import scaled
from .rig import Keys, make_publisher, poll_until, publish, receive_features

NEVER_READS = """
import sys, time, zmq
s = zmq.Context().socket(zmq.SUB)
s.setsockopt(zmq.RCVHWM, 1)
s.subscribe(b"")
s.connect(sys.argv[1])
s.recv_multipart()
print(flush=True)
time.sleep(60)
"""


def test_subscribers_stuck_on_tcp_are_closed_after_a_timeout_and_others_lose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One whose process is stopped, and one whose process runs but does not read. In service the timeout is 5 s."""
    monkeypatch.setattr(publish_socket, "UNREAD_MS", 1500)
    with (
        make_publisher(largest_message_bytes=200_000) as publisher,
        Subscriber(publisher.endpoints[0], timeout_s=scaled(5)) as healthy,
        subprocess.Popen([sys.executable, "-c", NEVER_READS, publisher.endpoints[0]], stdout=subprocess.PIPE) as still,
        subprocess.Popen([sys.executable, "-c", NEVER_READS, publisher.endpoints[0]], stdout=subprocess.PIPE) as busy,
    ):
        try:
            poll_until(publisher, "subscriptions_total", 4)
            for stuck in (still, busy):
                publisher.publish_hello()
                assert stuck.stdout is not None
                stuck.stdout.readline()
            still.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            seq = 0
            while publisher.statistics().peers > 1:
                assert time.monotonic() - began < scaled(4.5), publisher.statistics()
                publish(publisher, "cam1", seq, np.zeros(100_000, np.float16))
                publisher.poll()
                record = receive_features(healthy)
                assert (record.seq, record.gaps) == (seq, ())
                seq += 1
                time.sleep(0.02)
        finally:
            still.kill()
            busy.kill()


def test_no_subscriber_is_pinged() -> None:
    """libzmq aborts a disconnected subscriber that finds a ping among its unread bytes."""
    with make_publisher() as publisher:
        host, _, port = publisher.endpoints[0].removeprefix("tcp://").rpartition(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(GREETING)
            heard = b""
            while b"NULL" not in heard:
                heard += raw.recv(4096)
            raw.sendall(ready(b"SUB") + frame(b"\x01"))  # it subscribes to everything
            raw.settimeout(0.1)
            deadline = time.monotonic() + 2.5  # libzmq's pings came every 2 s
            while time.monotonic() < deadline:
                publisher.poll()
                with contextlib.suppress(TimeoutError):
                    heard += raw.recv(4096)
    assert b"hello/" in heard
    assert b"PING" not in heard


def test_every_option_is_set_when_the_socket_is_bound(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """libzmq applies most options to later connections only, and silently ignores them when it is too late."""
    wanted = {
        zmq.SNDHWM: 2,
        zmq.RCVHWM: 0,
        zmq.LINGER: 500,
        zmq.MAXMSGSIZE: 1024,
        zmq.HANDSHAKE_IVL: 5000,
        zmq.HEARTBEAT_IVL: 0,
        zmq.TCP_MAXRT: 5000,
        zmq.TCP_KEEPALIVE: 1,
        zmq.TCP_KEEPALIVE_IDLE: 60,
        zmq.TCP_KEEPALIVE_INTVL: 10,
        zmq.TCP_KEEPALIVE_CNT: 3,
        zmq.CURVE_SERVER: 1,
        zmq.ZAP_DOMAIN: b"retinad",
        zmq.ZAP_ENFORCE_DOMAIN: 1,
    }
    found: list[dict[int, object]] = []
    bind = publish_socket._bind

    def look(socket: "zmq.Socket[bytes]", endpoint: str) -> str:
        found.append({option: socket.getsockopt(option) for option in wanted})
        return bind(socket, endpoint)

    monkeypatch.setattr(publish_socket, "_bind", look)
    with make_publisher(largest_message_bytes=1 << 30, curve=keys.config()):
        assert found == [wanted]


def test_garbage_and_idle_peers_are_harmless_and_counted() -> None:
    with make_publisher() as publisher, Subscriber(publisher.endpoints[0]) as subscriber:
        poll_until(publisher, "subscriptions_total", 2)
        port = int(publisher.endpoints[0].rpartition(":")[2])
        idle = socket.create_connection(("127.0.0.1", port))
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), b"\xff" + bytes(9), b""):
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.sendall(garbage)
                time.sleep(0.02)
        poll_until(publisher, "connections_total", 6)
        poll_until(publisher, "handshake_failures", 1)
        for seq in range(20):
            publish(publisher, "cam1", seq)
            publisher.poll()
            record = receive_features(subscriber)
            assert (record.seq, record.gaps) == (seq, ())
        idle.close()


def test_foreign_messages_of_a_peer_are_ignored() -> None:
    with make_publisher(heartbeat_s=3600.0) as publisher, zmq.Context() as context, context.socket(zmq.XSUB) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        peer.connect(publisher.endpoints[0])
        for parts in ([b"no subscription"], [b"two", b"parts"], [b""], [b"\x00never subscribed"], [b"\x01hello/"]):
            peer.send_multipart(parts)
        poll_until(publisher, "subscriptions_total", 1)
        publish(publisher, "cam1", 0)
        assert publisher.statistics().subscriptions_total == 1


def test_a_peer_that_sends_too_much_is_cut_off() -> None:
    """One subscription of a megabyte overflows the stack in libzmq's tree of subscriptions."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\x05READY\x0bSocket-Type" + (3).to_bytes(4, "big") + b"SUB"
    with make_publisher() as publisher:
        with socket.create_connection(("127.0.0.1", int(publisher.endpoints[0].rpartition(":")[2]))) as peer:
            peer.sendall(greeting)
            time.sleep(0.1)
            peer.sendall(b"\x04" + bytes([len(ready)]) + ready + b"\x00\x01\x01")
            poll_until(publisher, "subscriptions_total", 1)
            peer.sendall(b"\x02" + (1 << 20).to_bytes(8, "big") + b"\x01")
            poll_until(publisher, "disconnected_total", 1)
        assert publisher.statistics().subscriptions_total == 1
