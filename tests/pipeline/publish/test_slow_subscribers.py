"""A subscriber that does not read is named, and no other."""

import os
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from retinad.client import FeaturesRecord, Subscriber
from retinad.pipeline.publish import slow_subscribers
from retinad.pipeline.publish.slow_subscribers import Peers

from ...deadlines import scaled
from .rig import make_publisher, poll_until, publish, raw_subscriber


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_subscribers, "SLOW_S", 0.3)


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_subscriber_that_does_not_read_is_named_once_and_one_that_reads_is_not(
    tmp_path: Path, transport: str
) -> None:
    endpoint = "tcp://127.0.0.1:0" if transport == "tcp" else f"ipc://{tmp_path}/s"
    with (
        make_publisher(endpoint, largest_message_bytes=1_000_000, buffer_mb=4) as publisher,
        Subscriber(publisher.endpoints[0], timeout_s=scaled(5)) as reader,
    ):
        poll_until(publisher, "subscriptions_total", 2)
        named: list[str] = []

        def play(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                publish(publisher, "cam1", 0, np.zeros(500_000, np.float16))
                publisher.poll()
                named.extend(publisher.take_slow_peers())
                assert isinstance(reader.receive(), FeaturesRecord)

        play(0.6)
        assert not named
        with raw_subscriber(publisher.endpoints[0], b"", hwm=1):
            poll_until(publisher, "peers", 2)
            play(1.5)
        (name,) = set(named)
        assert name == f"process {os.getpid()}" if transport == "ipc" else name.startswith("127.0.0.1:")


def test_a_descriptor_that_was_closed_or_reused_is_harmless(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    watched = Peers()
    watched.add(here.fileno())
    descriptor = here.fileno()
    here.close()
    there.close()
    watched.check()
    with (tmp_path / "file").open("w") as other:
        watched.add(descriptor)
        watched.add(other.fileno())
        watched.check()
    watched.remove(descriptor)
    watched.remove(descriptor)
    assert watched.take_slow() == ()
