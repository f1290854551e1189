"""Runs the real service as a process, on a config made for the test, and listens to it over real sockets."""

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

import cv2
import numpy as np

from retinad.client import Kind, Record, Subscriber

FAULTY = Path(__file__).with_name("faulty.py")


def write_frames(folder: Path, count: int, width: int = 160, height: int = 120) -> list[Path]:
    """Lossless pictures, each different, named so that natural order is not alphabetical order."""
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
    """A config with a tiny model that publishes on an ipc socket in `folder`; a reload finds the old one or the new."""
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

    def notified(self, text: str, timeout_s: float = 30.0) -> list[str]:
        """Everything that systemd would have been told, up to and including `text`."""
        told: list[str] = []
        deadline = time.monotonic() + timeout_s
        while True:
            self.notifications.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                told.append(self.notifications.recv(4096).decode())
            except TimeoutError:
                raise AssertionError(f"never told {text!r}, only {told}; log:\n{self.log.read_text()}") from None
            if text in told[-1]:
                return told

    def told(self) -> list[str]:
        """What systemd would have been told since it was last asked, without waiting."""
        texts: list[str] = []
        self.notifications.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                texts.append(self.notifications.recv(4096).decode())
        return texts

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 10.0) -> tuple[int, float]:
        """Exit code, and the seconds that it took."""
        started = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(timeout_s), time.monotonic() - started


@contextlib.contextmanager
def running(
    config: Path,
    *,
    watchdog_s: float | None = None,
    env: dict[str, str] | None = None,
    program: Sequence[str] = ("-m", "retinad.daemon"),
) -> Iterator[ServiceProcess]:
    """Start the service with a NOTIFY_SOCKET; kill it in the end if it still runs."""
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
    """Make it before the service starts: then nothing is missed, since sockets are bound before the model is loaded."""
    return Subscriber(f"ipc://{folder}/features.sock", kinds=kinds or tuple(Kind), timeout_s=30.0)


def receive_until(source: Subscriber, done: Callable[[Record], bool]) -> list[Record]:
    """All records up to and including the first for which `done` holds."""
    records = [source.receive()]
    while not done(records[-1]):
        records.append(source.receive())
    return records


def processes_of(pid: int) -> Sequence[int]:
    """The children of a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in children.read_text().split()] if children.exists() else []
