"""Runs the real service as a process, with a config written for the test, and subscribes to it over real sockets."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from retinad.client import Kind, Record, Subscriber

from ..deadlines import scaled

FAULTY = Path(__file__).with_name("faulty.py")


def write_frames(folder: Path, count: int, width: int = 160, height: int = 120) -> list[Path]:
    """Lossless images, each different, named so that natural order differs from alphabetical order."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    paths = [folder / f"frame{number}.png" for number in range(count)]
    for path in paths:
        coarse = rng.integers(0, 256, (6, 8, 3), np.uint8)
        assert cv2.imwrite(str(path), cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC))
    return paths


def camera(name: str, source: object, **keys: object) -> str:
    """A camera's table in the config."""
    lines = [f'name = "{name}"', f'source = "{source}"']
    lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "[[camera]]\n" + "\n".join(lines) + "\n"


def write_config(folder: Path, cameras: str, *, service: str = "", publish: str = "", model: str = "") -> Path:
    """Write a config with a tiny model and an ipc socket in `folder`; a reload sees either the old file or the new."""
    path, draft = folder / "config.toml", folder / "config.draft"
    draft.write_text(
        f"""
[service]
log_format = "json"
state_dir = "{folder}/state"
{service}
[publish]
endpoints = ["ipc://{folder}/features.sock"]
heartbeat_s = 0.5
{publish}
[model]
preset = "tiny"
device = "cpu"
image_width = 56
channels = 64
heads = 1
depth = 2
layers = [1]
{model}
[stream]
scale_frames = 2
window = 2
history_frames = 4
{cameras}
"""
    )
    return draft.replace(path)


class ServiceProcess:
    """A running `retinad run`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, notifications: socket.socket) -> None:
        self.process = process
        self.log = log
        self.notifications = notifications

    def events(self) -> list[dict[str, Any]]:
        """The lines of the log so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def notified(self, text: str, timeout_s: float = 30.0) -> list[str]:
        """Wait for a notification to systemd that holds `text`: all of them, up to and including that one."""
        received: list[str] = []
        deadline = time.monotonic() + scaled(timeout_s)
        while True:
            self.notifications.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                received.append(self.notifications.recv(4096).decode())
            except TimeoutError:
                log = self.log.read_text()
                raise AssertionError(f"no notification {text!r}, only {received}; log:\n{log}") from None
            if text in received[-1]:
                return received

    def notifications_so_far(self) -> list[str]:
        """The notifications that are waiting, without waiting for more."""
        texts: list[str] = []
        self.notifications.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                texts.append(self.notifications.recv(4096).decode())
        return texts

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 10.0) -> tuple[int, float]:
        """Send a signal and wait for the end: the exit code, and the seconds that it took."""
        started = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(scaled(timeout_s)), time.monotonic() - started

    def wait(self, timeout_s: float = 10.0) -> int:
        """Wait until the service ends by itself: the exit code."""
        return self.process.wait(scaled(timeout_s))


@contextlib.contextmanager
def running(
    config: Path,
    *,
    watchdog_s: float | None = None,
    env: dict[str, str] | None = None,
    program: Sequence[str] = ("-m", "retinad.daemon"),
) -> Iterator[ServiceProcess]:
    """Start the service with a NOTIFY_SOCKET, and kill it at the end if it still runs."""
    folder = config.parent
    address = str(folder / "notify.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.bind(address)
        environment = os.environ | {"NOTIFY_SOCKET": address, "OMP_NUM_THREADS": "1"}
        environment |= {"CACHE_DIRECTORY": f"{folder}/cache"} | (env or {})
        if watchdog_s is not None:
            environment["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        log = folder / "log.jsonl"
        with log.open("wb") as sink:
            command = [sys.executable, *program, "run", "--config", str(config)]
            process = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment)
        try:
            yield ServiceProcess(process, log, notifications)
        finally:
            process.kill()
            process.wait()


def subscriber(folder: Path, *kinds: Kind) -> Subscriber:
    """Open it before the service starts: it then misses nothing, as sockets are bound before the model is loaded."""
    return Subscriber(f"ipc://{folder}/features.sock", kinds=kinds or tuple(Kind), timeout_s=scaled(30.0))


def receive_until(source: Subscriber, done: Callable[[Record], bool]) -> list[Record]:
    """Receive until `done` holds: all records, including that one."""
    records = [source.receive()]
    while not done(records[-1]):
        records.append(source.receive())
    return records


def processes_of(pid: int) -> Sequence[int]:
    """The children of a process, without the shell that waits for its last words."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(child) for child in children.read_text().split()] if children.exists() else []
    return [child for child in found if _command_of(child) != b"/bin/sh"]


def _command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    return b""
