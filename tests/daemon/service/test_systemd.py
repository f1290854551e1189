"""Notifications to systemd, received on a real datagram socket in its place."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from retinad.daemon.service.systemd import Notifier

from ...deadlines import scaled


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The service manager's end: NOTIFY_SOCKET, and the socket that receives."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@retinad-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        received.settimeout(scaled(1.0))
        yield address, received


def test_each_message_is_what_the_protocol_says(manager: tuple[str, socket.socket]) -> None:
    address, received = manager
    with Notifier({"NOTIFY_SOCKET": address}) as notifier:
        notifier.status("loading\nthe model")
        notifier.extend_timeout(1.5)
        notifier.ready()
        notifier.watchdog()
        notifier.stopping()
    assert [received.recv(4096).decode() for _ in range(5)] == [
        "STATUS=loading the model",
        "EXTEND_TIMEOUT_USEC=1500000",
        "READY=1",
        "WATCHDOG=1",
        "STOPPING=1",
    ]


def test_a_reload_carries_the_monotonic_time_and_ends_with_ready(manager: tuple[str, socket.socket]) -> None:
    address, received = manager
    before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    with Notifier({"NOTIFY_SOCKET": address}) as notifier:
        notifier.reloading()
        notifier.ready()
    reloading, usec = received.recv(4096).decode().split("\n")
    assert reloading == "RELOADING=1"
    assert before_us <= int(usec.removeprefix("MONOTONIC_USEC=")) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert received.recv(4096) == b"READY=1"


@pytest.mark.parametrize("address", ["", "relative", "/nowhere/notify", "@nobody-listens-here", "/" + "x" * 300])
def test_without_a_manager_nothing_happens(address: str) -> None:
    with Notifier({"NOTIFY_SOCKET": address}) as notifier:
        notifier.ready()
        notifier.status("x")
        notifier.reloading()
    notifier.close()
    notifier.watchdog()
    Notifier({}).ready()


def test_a_manager_that_does_not_read_blocks_for_a_moment_at_most(manager: tuple[str, socket.socket]) -> None:
    address, _ = manager
    with Notifier({"NOTIFY_SOCKET": address}) as notifier, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                filler.sendto(b"x", address.replace("@", "\0", 1) if address.startswith("@") else address)
        began = time.monotonic()
        notifier.watchdog()
        assert time.monotonic() - began < scaled(0.5)


def test_a_restarted_manager_is_found_again(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with Notifier({"NOTIFY_SOCKET": address}) as notifier:
        for _ in range(2):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
                received.bind(address)
                notifier.watchdog()
                assert received.recv(100) == b"WATCHDOG=1"
            os.unlink(address)
            notifier.watchdog()


@pytest.mark.parametrize(
    ("environment", "interval_s"),
    [
        ({"WATCHDOG_USEC": "2000000"}, 1.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}, 1.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "x"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_twice_in_its_time(environment: dict[str, str], interval_s: float | None) -> None:
    assert Notifier(environment).watchdog_interval_s == interval_s


def test_children_do_not_inherit_the_connection_to_the_manager(manager: tuple[str, socket.socket]) -> None:
    address, received = manager
    script = """if True:
        import os, subprocess, sys
        from retinad.daemon.service.systemd import Notifier
        notifier = Notifier()
        print(os.environ.get("NOTIFY_SOCKET"), os.environ.get("WATCHDOG_USEC"), flush=True)
        subprocess.run([sys.executable, "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:4])"])
        notifier.ready()
    """
    environment = os.environ | {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "5"}
    output = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=20, check=True
    )
    assert output.stdout.splitlines() == ["None None", "[0, 1, 2, 3]"]  # 3 is the listing's own
    assert received.recv(100) == b"READY=1"


def test_ready_is_repeated_until_it_was_taken(manager: tuple[str, socket.socket]) -> None:
    """A manager whose queue is full would otherwise end a healthy service after TimeoutStartSec."""
    address, received = manager
    with Notifier({"NOTIFY_SOCKET": address}) as notifier, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                other.sendto(b"full", address.replace("@", "\0", 1) if address.startswith("@") else address)
        notifier.ready()
        notifier.status("still full")
        received.setblocking(False)
        taken = []
        with suppress(BlockingIOError):
            while True:
                taken.append(received.recv(4096))
        assert set(taken) == {b"full"}
        for _ in range(2):
            notifier.watchdog()
        assert [received.recv(4096) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
